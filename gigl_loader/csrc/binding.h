// What the bindings share: array types, checks, and arrays that are handed to Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "buffer.h"
#include "stop.h"

namespace gigl {

namespace nb = nanobind;

template <typename T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MutableRows = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename T>
using NewArray = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <typename T>
std::span<T> Span(const Array<T>& array) {
  return {array.data(), array.shape(0)};
}

// Releases the GIL. The work may then be paused: see stop.h.
struct ReleaseGil {
  nb::gil_scoped_release release;
  MayWait may_wait;
};

inline void Require(bool holds, const char* rule) {
  if (!holds) throw nb::value_error(rule);
}
inline void Require(bool holds, const std::string& rule) { Require(holds, rule.c_str()); }

inline bool IsWide(const AnyArray& array, const char* what) {
  if (array.dtype() == nb::dtype<int64_t>()) return true;
  if (array.dtype() == nb::dtype<int32_t>()) return false;
  throw nb::type_error((std::string(what) + " must be int32 or int64").c_str());
}

// Bounds of parts that follow each other: [first of part 0, ..., end of the last part].
inline void RequireRising(std::span<const int64_t> bounds) {
  for (size_t p = 0; p + 1 < bounds.size(); ++p) Require(bounds[p] <= bounds[p + 1], "bounds must not fall");
}

// Gives memory to a NumPy array, which frees it.
template <typename T>
NewArray<T> HandOver(std::unique_ptr<T[]> memory, size_t size) {
  T* const data = memory.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return NewArray<T>(data, {size}, owner);
}

template <typename T>
NewArray<T> HandOver(Buffer<T>&& buffer) {
  const size_t size = buffer.size();
  std::unique_ptr<T[]> memory = buffer.Release();
  if (memory == nullptr) memory.reset(new T[1]);
  return HandOver(std::move(memory), size);
}

// One function per file of bindings: adds its functions and classes to the module.
void BindAdjacency(nb::module_& m);
void BindBuckets(nb::module_& m);
void BindCacheIndex(nb::module_& m);
void BindChecksums(nb::module_& m);
void BindData(nb::module_& m);
void BindDisk(nb::module_& m);
void BindMappedFiles(nb::module_& m);
void BindPlacement(nb::module_& m);
void BindPositionLists(nb::module_& m);
void BindPpr(nb::module_& m);
void BindRandom(nb::module_& m);
void BindRowCache(nb::module_& m);
void BindRows(nb::module_& m);
void BindSampling(nb::module_& m);
void BindSharedSlots(nb::module_& m);
void BindSlots(nb::module_& m);
void BindStop(nb::module_& m);
void BindTextIndex(nb::module_& m);

}  // namespace gigl
