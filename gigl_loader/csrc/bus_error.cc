#include "bus_error.h"

#include <csignal>
#include <cstring>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "mutex.h"

namespace gigl {
namespace {

// Entries are never freed, and used again only under the lock: the handler takes none, as it may run in
// the thread that holds it.
struct Mapping {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};  // 0 while the entry is free.
  char name[512] = {};
  Mapping* next = nullptr;
};

std::atomic<Mapping*> g_mappings{nullptr};
Mutex g_lock;
struct sigaction g_before;
std::atomic<bool> g_told{false};

// Only what is safe in a handler: no allocation, no locks, no stdio.
void Say(const char* text) {
  size_t left = std::strlen(text);
  while (left > 0) {
    const ssize_t written = write(STDERR_FILENO, text, left);
    if (written <= 0) return;
    text += written;
    left -= static_cast<size_t>(written);
  }
}

const char* NameAt(uintptr_t address) {
  for (const Mapping* each = g_mappings.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    const uintptr_t end = each->end.load(std::memory_order_acquire);
    if (each->begin.load(std::memory_order_relaxed) <= address && address < end) return each->name;
  }
  return nullptr;
}

void OnBusError(int signal, siginfo_t* info, void*) {
  const bool of_an_access = info->si_code > 0;
  if (g_told.exchange(true)) {
    // The handler before ours has had its turn and came back to us, as faulthandler does.
    std::signal(SIGBUS, SIG_DFL);
  } else {
    const char* name = of_an_access ? NameAt(reinterpret_cast<uintptr_t>(info->si_addr)) : nullptr;
    if (name != nullptr) {
      Say("\ngigl-loader: bus error: ");
      Say(name);
      Say(" was cut, or cannot be read any more, while it was mapped\n");
    }
    sigaction(SIGBUS, &g_before, nullptr);
  }
  // An access is repeated on return, and the signal comes again for the handler that is there now.
  if (!of_an_access) raise(signal);
}

}  // namespace

int64_t WatchMapping(uintptr_t begin, size_t bytes, const std::string& name) {
  const MutexLock guard(g_lock);
  Mapping* entry = g_mappings.load();
  while (entry != nullptr && entry->end.load() != 0) entry = entry->next;
  const bool is_new = entry == nullptr;
  if (is_new) entry = new Mapping();
  // The tail of a long path tells more.
  const size_t size = std::min(name.size(), sizeof(entry->name) - 1);
  std::memcpy(entry->name, name.data() + (name.size() - size), size);
  entry->name[size] = 0;
  entry->begin.store(begin, std::memory_order_relaxed);
  entry->end.store(begin + bytes, std::memory_order_release);
  if (is_new) {
    entry->next = g_mappings.load();
    g_mappings.store(entry, std::memory_order_release);
  }
  return reinterpret_cast<int64_t>(entry);
}

void ForgetMapping(int64_t key) {
  const MutexLock guard(g_lock);
  reinterpret_cast<Mapping*>(key)->end.store(0, std::memory_order_release);
}

void InstallBusErrorHandler() {
  const MutexLock guard(g_lock);
  struct sigaction now {};
  if (sigaction(SIGBUS, nullptr, &now) != 0 || now.sa_sigaction == OnBusError || g_told) return;
  g_before = now;
  struct sigaction action {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace gigl
