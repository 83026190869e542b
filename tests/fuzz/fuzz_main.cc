// Runs a fuzz target without libFuzzer, for compilers that lack it: `target [seconds] [seed]`, or `target FILE` to
// repeat one input. Inputs are mutations of the seeds, drawn from `seed`; nothing is learned from coverage.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "port_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

Bytes Mutated(std::mt19937& engine, const std::vector<Bytes>& seeds) {
  const auto below = [&engine](size_t bound) { return static_cast<size_t>(engine() % bound); };
  Bytes made = seeds[below(seeds.size())];
  for (size_t changes = 1 + below(6); changes > 0; --changes) {
    const size_t at = made.empty() ? 0 : below(made.size());
    switch (below(4)) {
      case 0:
        if (!made.empty()) made[at] = static_cast<uint8_t>(engine());
        break;
      case 1: made.insert(made.begin() + static_cast<std::ptrdiff_t>(at), static_cast<uint8_t>(below(16))); break;
      case 2:
        if (!made.empty()) made.erase(made.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      default: {
        const Bytes& other = seeds[below(seeds.size())];
        made.resize(at);
        made.insert(made.end(), other.begin() + static_cast<std::ptrdiff_t>(below(other.size())), other.end());
      }
    }
  }
  return made;
}

Bytes last;

// The input that failed, for `target FILE`.
void SaveLast() {
  std::ofstream("crash-input", std::ios::binary)
      .write(reinterpret_cast<const char*>(last.data()), static_cast<std::streamsize>(last.size()));
}

}  // namespace

extern "C" void __sanitizer_set_death_callback(void (*callback)());

int main(int argc, char** argv) {
  if (argc > 1 && access(argv[1], R_OK) == 0) {
    std::ifstream file(argv[1], std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    return LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  __sanitizer_set_death_callback(&SaveLast);
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10.0;
  std::mt19937 engine(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1);
  const auto seeds = gigl::Seeds();
  for (const Bytes& seed : seeds) LLVMFuzzerTestOneInput((last = seed).data(), seed.size());
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  unsigned long runs = 0;
  for (; std::chrono::steady_clock::now() < until; ++runs) {
    last = Mutated(engine, seeds);
    LLVMFuzzerTestOneInput(last.data(), last.size());
  }
  std::printf("%lu inputs\n", runs);
  return 0;
}
