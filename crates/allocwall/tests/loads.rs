//! How much of a program's own time waits for loads, compared with a program that follows pointers for a known part of it. Its twin
//! computes.

use serde_json::Value;
use std::process::{Command, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");

/// Follows a list in random order through 200,000 blocks for this part of its time, and computes for the rest; in the end it prints the
/// part by its own clock, without the time in which it made the list.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#define BLOCKS 200000
struct block { struct block *next; char rest[56]; };
static struct block *blocks[BLOCKS];
static unsigned long random_state = 1;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static unsigned long any(void) {
    random_state ^= random_state << 13; random_state ^= random_state >> 7; random_state ^= random_state << 17;
    return random_state;
}
int main(int count, char **arguments) {
    double part = atof(arguments[1]), followed = 0, computed = 0;
    unsigned long sum = 0;
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            free(blocks[i]);
            blocks[i] = malloc(sizeof(struct block));
        }
        for (int i = BLOCKS - 1; i > 0; i--) {
            int j = any() % (i + 1);
            struct block *other = blocks[i]; blocks[i] = blocks[j]; blocks[j] = other;
        }
        for (int i = 0; i < BLOCKS; i++) blocks[i]->next = blocks[(i + 1) % BLOCKS];
        struct block *at = blocks[0];
        double begin = now(), next = begin, end = begin + 0.5;
        while (next < end) {
            double start = next;
            if (followed < part * (followed + computed + 1e-9)) {
                for (int i = 0; i < 20000; i++) at = at->next;
                next = now(); followed += next - start;
            } else {
                for (int i = 0; i < 400000; i++) sum = sum * 3 + (sum >> 7) + 1;
                next = now(); computed += next - start;
            }
        }
        sum += (unsigned long)at;
    }
    fprintf(stderr, "followed %f\n", followed / (followed + computed));
    return sum == 1;
}
"#;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn waiting_for_loads_is_as_much_as_a_program_does_by_its_own_clock() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| place.path().join(name);
    let (source, program) = (at("follow.c"), at("follow"));
    std::fs::write(&source, PROGRAM).expect("a file");
    match Command::new("cc").arg(&source).arg("-O1").arg("-o").arg(&program).output() {
        Ok(output) => assert!(output.status.success(), "{}", text(&output.stderr)),
        Err(error) => return println!("skipped: cc: {error}"),
    }
    let program = program.to_str().expect("UTF-8");
    for part in ["0.9", "0.5", "0"] {
        let output = Command::new(BINARY)
            .args(["diagnose", "--count", "--json", "-d", "20", "--", program, part])
            .env("XDG_CACHE_HOME", at("cache"))
            .env("XDG_STATE_HOME", at("state"))
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .output()
            .expect("the tool starts");
        let talk = text(&output.stderr);
        let document: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {talk}"));
        let waits = &document["bill"]["waits_for_loads"];
        if waits["absent"]["reason"] == "not_applicable" {
            return println!("skipped: {}", waits["absent"]["detail"].as_str().expect("a reason"));
        }
        let waits = waits["point"].as_f64().expect("a part");
        let followed = talk.lines().find_map(|line| line.strip_prefix("followed ")).expect("it ended");
        let followed: f64 = followed.parse().expect("a number");
        // The list is made in a twentieth of the time, which partly waits too.
        assert!((waits - followed).abs() < 0.1, "{followed} of the time, found {waits}");
        let remedies = document["remedies"].as_array().expect("remedies");
        let by_places = remedies.iter().filter(|remedy| {
            remedy["basis"]
                .as_str()
                .is_some_and(|basis| basis.contains("which another allocator may make faster"))
        });
        assert_eq!(by_places.count() > 0, followed > 0.4, "{part}: {remedies:?}");
    }
}
