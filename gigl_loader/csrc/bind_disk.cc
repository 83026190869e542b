// The Python face of the reader of rows from disks.

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "binding.h"
#include "disk_reader.h"

namespace gigl {
using namespace nb::literals;

namespace {

using Job = std::tuple<size_t, int64_t, int64_t, Array<const int64_t>, Array<const int64_t>, MutableRows>;

// Calls `work` without the GIL, and raises its errors as OSError, or as EOFError for a file that ends too early.
template <typename Work>
auto Raising(const Work& work) {
  try {
    const ReleaseGil release;
    return work();
  } catch (const DiskError& error) {
    if (error.error == 0) {
      PyErr_SetString(PyExc_EOFError, error.what());
    } else {
      const nb::object path = error.path.empty() ? nb::none() : nb::object(nb::str(error.path.c_str()));
      const nb::tuple arguments = nb::make_tuple(error.error, error.what(), path);
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  } catch (const std::system_error& error) {
    const nb::tuple arguments = nb::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  }
  throw nb::python_error();
}

std::unique_ptr<DiskReader> NewReader(int64_t depth, int64_t gap, const std::string& engine) {
  Require(depth >= 1 && depth <= 4096, "depth must be from 1 to 4096");
  Require(gap >= 0 && gap < (int64_t{1} << 31), "gap must be from 0 to 2^31 - 1");
  Require(engine.empty() || engine == "io_uring" || engine == "threads", "engine must be 'io_uring' or 'threads'");
  return Raising([&] { return std::make_unique<DiskReader>(static_cast<uint32_t>(depth), gap, engine); });
}

// Throws nothing: it runs without the GIL. Returns the rule that is broken, or null.
const char* Broken(const RowJob& job, int64_t out_rows) {
  int64_t last = 0;
  for (const int64_t row : job.rows) {
    if (row < 0 || row >= job.num_rows) return "a row lies outside the file's";
    if (row < last) return "rows must ascend";
    last = row;
  }
  for (const int64_t target : job.targets) {
    if (target < 0 || target >= out_rows) return "a target lies outside out";
  }
  return nullptr;
}

void Read(DiskReader& reader, const std::vector<Job>& given) {
  const size_t num_files = reader.num_files();
  std::vector<RowJob> jobs;
  std::vector<int64_t> out_rows;
  for (const auto& [file, offset, num_rows, rows, targets, out] : given) {
    const auto row_bytes = static_cast<int64_t>(out.shape(1));
    Require(file < num_files, "no file has this number");
    Require(rows.shape(0) == targets.shape(0), "rows and targets differ in length");
    Require(offset >= 0 && num_rows >= 0 && (row_bytes == 0 || num_rows <= (INT64_MAX - kMaxReadBytes - offset) / row_bytes),
            "offset and num_rows must not be negative, nor overflow");
    jobs.push_back({file, offset, row_bytes, num_rows, Span(rows), Span(targets), reinterpret_cast<std::byte*>(out.data())});
    out_rows.push_back(static_cast<int64_t>(out.shape(0)));
  }
  const char* const broken = Raising([&]() -> const char* {
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (const char* const rule = Broken(jobs[i], out_rows[i])) return rule;
    }
    reader.Read(jobs);
    return nullptr;
  });
  if (broken != nullptr) throw nb::value_error(broken);
}

nb::dict Counts(const DiskReader& reader) {
  const DiskCounts counts = reader.counts();
  nb::dict found;
  found["reads"] = counts.reads;
  found["bytes"] = counts.bytes;
  found["rows"] = counts.rows;
  found["seconds"] = static_cast<double>(counts.nanoseconds) * 1e-9;
  return found;
}

}  // namespace

void BindDisk(nb::module_& m) {
  nb::class_<DiskReader>(m, "DiskReader")
      .def(nb::new_(&NewReader), "depth"_a = 64, "gap"_a = 24 << 10, "engine"_a = "")
      .def("open", [](DiskReader& self, const std::string& path) { return Raising([&] { return self.Open(path); }); },
           "path"_a)
      .def("is_direct", &DiskReader::IsDirect, "file"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("read", &Read, "jobs"_a)
      .def("close", &DiskReader::Close, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("counts", &Counts)
      .def_prop_ro("engine", &DiskReader::engine);
}

}  // namespace gigl
