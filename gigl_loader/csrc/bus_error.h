// A last line for a process that reads a mapped file which was cut: the kernel ends it by SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gigl {

// Names the file that is mapped at [begin, begin + bytes). Returns a key for ForgetMapping.
int64_t WatchMapping(uintptr_t begin, size_t bytes, const std::string& name);

// Forgets a mapping, which is about to end.
void ForgetMapping(int64_t key);

// Makes ours the first handler of SIGBUS, if it is not. It writes one line to stderr, then restores the
// handler that was there before: that one, or the kernel, ends the process as it would have.
void InstallBusErrorHandler();

}  // namespace gigl
