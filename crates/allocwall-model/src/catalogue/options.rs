//! Options of a runtime on a command line, as in `node --max-semi-space-size=16 app.js`. They stand between the name of the runtime
//! and that of the program which it runs. What follows belongs to the program.

/// Options of Node whose value is the next word (`node --help`). Options of V8 have no such form: `--max-semi-space-size 16` is an
/// error (tried with Node 20).
const NODE_WITH_VALUE: &[&str] = &[
    "-C",
    "-e",
    "-p",
    "-pe",
    "-r",
    "--conditions",
    "--cpu-prof-dir",
    "--cpu-prof-name",
    "--diagnostic-dir",
    "--disable-warning",
    "--dns-result-order",
    "--env-file",
    "--eval",
    "--experimental-loader",
    "--heap-prof-dir",
    "--heapsnapshot-signal",
    "--icu-data-dir",
    "--import",
    "--input-type",
    "--inspect-port",
    "--loader",
    "--max-http-header-size",
    "--openssl-config",
    "--print",
    "--redirect-warnings",
    "--report-directory",
    "--report-dir",
    "--report-filename",
    "--report-signal",
    "--require",
    "--title",
    "--tls-cipher-list",
    "--trace-event-categories",
    "--unhandled-rejections",
    "--watch-path",
];
/// The same for Java (`java --help`, and IsWhiteSpaceOption in java.c of the JDK).
const JAVA_WITH_VALUE: &[&str] = &[
    "-cp",
    "-classpath",
    "-p",
    "--add-exports",
    "--add-modules",
    "--add-opens",
    "--add-reads",
    "--class-path",
    "--enable-native-access",
    "--limit-modules",
    "--module-path",
    "--patch-module",
    "--source",
    "--upgrade-module-path",
];
/// The value of these is the program.
const JAVA_LAST: &[&str] = &["-m", "--module"];
/// The ways to set the maximum size of the Java heap. The last one on the command line counts.
const JAVA_HEAP: &[&str] = &["-Xmx", "-mx", "-XX:MaxHeapSize="];

/// Which words set the same as the option, by index. `words` are the command line after the name of the runtime; the option is one of
/// Java if it begins with `-X`, else one of Node, with or without its value.
pub fn same_setting<'a>(words: impl IntoIterator<Item = &'a str>, option: &str) -> Vec<usize> {
    const NONE: &[&str] = &[];
    let java = option.starts_with("-X");
    let (with_value, last) = if java { (JAVA_WITH_VALUE, JAVA_LAST) } else { (NODE_WITH_VALUE, NONE) };
    let mut same = vec![];
    let mut is_value = false;
    for (at, word) in words.into_iter().enumerate() {
        if std::mem::take(&mut is_value) {
            continue;
        }
        // Java reads more options from `@FILE`. For Node, `-` is a program on standard input, and `--` ends the options.
        let is_option = word.starts_with('-') || java && word.starts_with('@');
        if !is_option || matches!(word, "-" | "--") || last.contains(&word) {
            break;
        }
        if sets_the_same(word, option) {
            same.push(at);
        }
        is_value = with_value.contains(&word);
    }
    same
}

fn sets_the_same(word: &str, option: &str) -> bool {
    let is_heap = |word: &str| JAVA_HEAP.iter().any(|prefix| word.starts_with(prefix));
    if option.starts_with("-X") {
        return is_heap(word) && is_heap(option);
    }
    let name = option.split('=').next().unwrap_or(option);
    value(word, name).is_some()
}

/// The value of an option of Node; empty if it has none. Node accepts `_` for `-`.
pub fn value<'a>(word: &'a str, name: &str) -> Option<&'a str> {
    let (key, value) = word.split_once('=').unwrap_or((word, ""));
    (key.replace('_', "-") == name).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str, option: &str) -> Vec<usize> {
        same_setting(line.split(' '), option)
    }

    #[test]
    fn an_option_is_found_before_the_program_and_not_after_it() {
        const SPACE: &str = "--max-semi-space-size=64";
        for (line, at) in [
            ("--max-semi-space-size=1 app.js", vec![0]),
            ("--inspect --max_semi_space_size=1 app.js", vec![1]),
            ("--max-semi-space-size=1 --max-semi-space-size=2 app.js", vec![0, 1]),
            ("-r tracing --max-semi-space-size=1 app.js", vec![2]),
            ("-e code --max-semi-space-size=1", vec![2]),
            ("app.js --max-semi-space-size=1", vec![]),
            ("- --max-semi-space-size=1", vec![]),
            ("-- app.js --max-semi-space-size=1", vec![]),
            ("-r --max-semi-space-size=1 app.js", vec![]),
            ("--max-old-space-size=1 app.js", vec![]),
            ("--max-semi-space-size-factor=1 app.js", vec![]),
        ] {
            assert_eq!(found(line, SPACE), at, "{line}");
        }
        assert_eq!(found("--max-semi-space-size=1 app.js", "--max-semi-space-size"), [0]);
    }

    #[test]
    fn the_java_heap_is_set_in_more_than_one_way() {
        const HEAP: &str = "-Xmx2147483648";
        for (line, at) in [
            ("-Xmx48m -jar x.jar", vec![0]),
            ("-XX:MaxHeapSize=1g -server -mx48m Service", vec![0, 2]),
            ("-cp lib/* -Xmx48m Service", vec![2]),
            ("@options -Xmx48m Service", vec![1]),
            ("-jar -Xmx48m x.jar", vec![1]),
            ("-jar x.jar -Xmx48m", vec![]),
            ("-m app/Service -Xmx48m", vec![]),
            ("-Xms48m -Xmn8m -XX:MaxRAMPercentage=50 Service", vec![]),
        ] {
            assert_eq!(found(line, HEAP), at, "{line}");
        }
        // Another option of Java.
        assert!(found("-Xmx48m Service", "-Xss1m").is_empty());
    }
}
