// The main function of a file of programs.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

struct Program {
    const char *name;
    uint64_t (*run)(long rounds);
};

// Runs the program that the arguments NAME ROUNDS name, and prints its sum. Returns the exit status.
inline int run_one(const char *file, std::initializer_list<Program> programs, int argc, char **argv) {
    long rounds = argc == 3 ? std::strtol(argv[2], nullptr, 10) : 0;
    for (const Program &program : programs) {
        if (rounds >= 1 && !std::strcmp(argv[1], program.name)) {
            std::printf("%llu\n", static_cast<unsigned long long>(program.run(rounds)));
            return 0;
        }
    }
    std::fprintf(stderr, "usage: %s NAME ROUNDS      NAME:", file);
    for (const Program &program : programs) {
        std::fprintf(stderr, " %s", program.name);
    }
    std::fprintf(stderr, "\n");
    return 2;
}
