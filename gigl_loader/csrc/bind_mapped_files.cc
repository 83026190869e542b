// The Python face of mapped files.

#include <nanobind/stl/string.h>

#include <sys/mman.h>

#include <memory>
#include <string>
#include <system_error>

#include "binding.h"
#include "bus_error.h"
#include "mapped_file.h"

namespace gigl {
namespace {

// Calls `run`. What it throws of the system becomes an OSError.
template <typename Run>
auto WithSystemErrors(Run run) {
  try {
    return run();
  } catch (const std::system_error& error) {
    const nb::tuple arguments = nb::make_tuple(error.code().value(), error.code().message());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
    throw nb::python_error();
  }
}

bool BindUseHugePages(int fd, int64_t begin, int64_t nbytes) {
  Require(begin >= 0 && nbytes >= 0, "begin and nbytes must not be negative");
  return WithSystemErrors([=] {
    const ReleaseGil release;
    return UseHugePages(fd, begin, static_cast<size_t>(nbytes));
  });
}

// An array of the map, which ends with the last array of it. Only a map that can be written gives one that can be.
nb::object Map(int fd, int64_t nbytes, int64_t begin, int prot) {
  Require(nbytes > 0, "nbytes must be positive");
  Require(begin >= 0, "begin must not be negative");
  std::unique_ptr<MappedFile> mapped =
      WithSystemErrors([=] { return std::make_unique<MappedFile>(fd, begin, static_cast<size_t>(nbytes), prot); });
  auto* const data = reinterpret_cast<uint8_t*>(mapped->data());
  const size_t size = mapped->size();
  // With the GIL: a thread of a daemon could not come back without it while the interpreter ends.
  const nb::capsule owner(mapped.release(), [](void* p) noexcept { delete static_cast<MappedFile*>(p); });
  if ((prot & PROT_WRITE) != 0) return nb::cast(NewArray<uint8_t>(data, {size}, owner));
  return nb::cast(NewArray<const uint8_t>(data, {size}, owner));
}

}  // namespace

void BindMappedFiles(nb::module_& m) {
  using namespace nb::literals;
  m.def("map_file", &Map, "fd"_a, "nbytes"_a, "begin"_a = 0, "prot"_a = PROT_READ);
  m.def("use_huge_pages", &BindUseHugePages, "fd"_a, "begin"_a, "nbytes"_a);
  m.def("advise_random", [](const Array<const uint8_t>& data) { AdviseRandom(data.data(), data.shape(0)); },
        "data"_a.noconvert());
  m.def("watch_mapping", [](const Array<const uint8_t>& data, const std::string& name) {
    return WatchMapping(reinterpret_cast<uintptr_t>(data.data()), data.shape(0), name);
  }, "data"_a.noconvert(), "name"_a);
  m.def("install_bus_error_handler", &InstallBusErrorHandler);
  m.def("forget_mapping", &ForgetMapping, "key"_a);
}

}  // namespace gigl
