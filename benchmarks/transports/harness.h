// What every candidate does alike: a server in a child process, frames of one size received into slots, CPU of both.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

constexpr size_t chunk_bytes = 2 << 20;  // Of our replies.
constexpr size_t small_bytes = 1 << 10;
constexpr int num_slots = 4;

struct Options {
    bool tls;
    int frames;
    size_t frame_bytes;
    int small_calls;
    std::string certificate, key;  // PEM, for "localhost".
};

// A connected client. `fetch` asks for so many bytes and receives them at `out`.
struct Client {
    virtual ~Client() = default;
    virtual void fetch(size_t bytes, uint8_t* out) = 0;
};

using Serve = std::function<void(const Options&, std::function<void(int port)>)>;  // Never returns.
using Connect = std::function<std::unique_ptr<Client>(const Options&, int port)>;

inline double cpu_seconds(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

inline std::string file_text(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

[[noreturn]] inline void fail(const std::string& what) {
    fprintf(stderr, "%s\n", what.c_str());
    exit(1);
}

// Memory that a server sends: warm, as frames are when they were just written.
inline const std::vector<uint8_t>& warm_chunk() {
    static const std::vector<uint8_t> memory(chunk_bytes, 1);
    return memory;
}

// Prints one line of JSON: CPU seconds per GB, GB per second, and what a small call takes.
inline int compare(int argc, char** argv, const char* name, const Serve& serve, const Connect& connect) {
    if (argc != 6) fail("usage: PROGRAM plain|tls FRAMES FRAME_BYTES SMALL_CALLS FOLDER_OF_CERTIFICATE");
    std::string folder = argv[5];
    Options options{std::string(argv[1]) == "tls", atoi(argv[2]),          size_t(atoll(argv[3])),
                    atoi(argv[4]),                 folder + "/server.pem", folder + "/server.key"};
    int pipe_ends[2];
    if (pipe(pipe_ends)) fail("pipe");
    pid_t server = fork();  // Before any library has threads.
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(options, [&](int port) {
            if (write(pipe_ends[1], &port, sizeof port) != sizeof port) fail("write");
        });
        exit(1);
    }
    int port = 0;
    if (read(pipe_ends[0], &port, sizeof port) != sizeof port) fail("the server did not start");
    clockid_t clock;
    clock_getcpuclockid(server, &clock);
    auto cpu = [&] { return cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) + cpu_seconds(clock); };
    auto now = [] { return std::chrono::steady_clock::now(); };

    auto client = connect(options, port);
    std::vector<std::unique_ptr<uint8_t[]>> slots;
    for (int i = 0; i < num_slots; ++i) slots.emplace_back(new uint8_t[options.frame_bytes]());
    for (auto& slot : slots) client->fetch(options.frame_bytes, slot.get());  // Warm-up.

    double before = cpu();
    auto began = now();
    for (int i = 0; i < options.frames; ++i) client->fetch(options.frame_bytes, slots[i % num_slots].get());
    double seconds = std::chrono::duration<double>(now() - began).count();
    double per_gb = (cpu() - before) / (1e-9 * options.frames * options.frame_bytes);
    double rate = 1e-9 * options.frames * options.frame_bytes / seconds;

    std::vector<double> times;
    before = cpu();
    for (int i = 0; i < options.small_calls; ++i) {
        auto start = now();
        client->fetch(small_bytes, slots[0].get());
        times.push_back(1e6 * std::chrono::duration<double>(now() - start).count());
    }
    double small_cpu = 1e6 * (cpu() - before) / options.small_calls;
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    printf("{\"transport\": \"%s\", \"tls\": %s, \"cpu_s_per_gb\": %.3f, \"gb_per_s\": %.2f, "
           "\"small_call_us\": %.0f, \"small_call_cpu_us\": %.0f}\n",
           name, options.tls ? "true" : "false", per_gb, rate, times[times.size() / 2], small_cpu);
    fflush(stdout);
    kill(server, SIGKILL);
    waitpid(server, nullptr, 0);
    _exit(0);
}
