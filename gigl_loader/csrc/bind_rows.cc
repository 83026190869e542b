#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "binding.h"
#include "dequantize.h"
#include "gather.h"
#include "routing.h"

namespace gigl {
namespace {

void BindGather(const std::vector<std::vector<Rows>>& columns, const Array<const int64_t>& bounds,
                const Array<const int64_t>& positions, const std::vector<MutableRows>& out, ReadOrder order) {
  Require(bounds.shape(0) > 0 && bounds(0) == 0, "bounds must start at 0");
  RequireRising(Span(bounds));
  Require(columns.size() == out.size(), "there must be as many columns as outputs");
  const size_t num_parts = bounds.shape(0) - 1;
  std::vector<Column> copies;
  for (size_t c = 0; c < columns.size(); ++c) {
    Require(columns[c].size() == num_parts, "bounds must have one entry more than there are parts");
    Require(out[c].shape(0) == positions.shape(0), "out and positions differ in length");
    Column& copy = copies.emplace_back(
        Column{{}, static_cast<int64_t>(out[c].shape(1)), reinterpret_cast<std::byte*>(out[c].data())});
    for (size_t p = 0; p < num_parts; ++p) {
      const Rows& part = columns[c][p];
      Require(part.shape(1) == out[c].shape(1), "all parts and out need rows of the same size");
      Require(static_cast<int64_t>(part.shape(0)) == bounds(p + 1) - bounds(p), "a part has other rows than its bounds say");
      copy.parts.push_back(reinterpret_cast<const std::byte*>(part.data()));
    }
  }
  int64_t wrong;
  {
    ReleaseGil release;
    wrong = Gather(copies, Span(bounds), Span(positions), order);
  }
  Require(wrong < 0, "position " + std::to_string(wrong < 0 ? 0 : positions(wrong)) + " lies outside [0, " +
                         std::to_string(bounds(num_parts)) + ")");
}

using Indices = std::optional<Array<const int64_t>>;

void CopyChecked(const Rows& source, const Indices& rows, const Indices& places, const MutableRows& out, int64_t first,
                 ReadOrder order, uint32_t* crc) {
  Require(source.shape(1) == out.shape(1), "source and out need rows of the same size");
  const size_t count = rows ? rows->shape(0) : places ? places->shape(0) : source.shape(0);
  Require(!places || places->shape(0) == count, "rows and places differ in length");
  Require(first >= 0 && first <= INT64_MAX - static_cast<int64_t>(source.shape(0)), "first must not be negative, nor overflow");
  const RowBlock block{reinterpret_cast<const std::byte*>(source.data()), static_cast<int64_t>(source.shape(0)), first};
  int64_t wrong;
  {
    ReleaseGil release;
    wrong = CopyRows(block, rows ? Span(*rows) : std::span<const int64_t>(),
                     places ? Span(*places) : std::span<const int64_t>(), static_cast<int64_t>(count),
                     static_cast<int64_t>(out.shape(1)), reinterpret_cast<std::byte*>(out.data()),
                     static_cast<int64_t>(out.shape(0)), order, crc);
  }
  if (wrong < 0) return;
  const int64_t row = rows ? (*rows)(wrong) : wrong + first;
  const int64_t place = places ? (*places)(wrong) : wrong;
  Require(false, "row " + std::to_string(row) + " of [" + std::to_string(first) + ", " +
                     std::to_string(first + block.num_rows) + ") to place " + std::to_string(place) + " of [0, " +
                     std::to_string(out.shape(0)) + ") cannot be copied");
}

void BindCopyRows(const Rows& source, const Indices& rows, const Indices& places, const MutableRows& out, int64_t first,
                  ReadOrder order) {
  CopyChecked(source, rows, places, out, first, order, nullptr);
}

uint32_t BindCopyRowsCrc(const Rows& source, const Indices& rows, const Indices& places, const MutableRows& out,
                         uint32_t crc, int64_t first) {
  CopyChecked(source, rows, places, out, first, ReadOrder::kGiven, &crc);
  return crc;
}

std::vector<std::pair<NewArray<int64_t>, NewArray<int64_t>>> BindSplitByOwner(const Array<const int64_t>& values,
                                                                              const Array<const int64_t>& bounds) {
  Require(bounds.shape(0) >= 2, "bounds need at least one part");
  const size_t parts = bounds.shape(0) - 1;
  Require(parts <= kMaxPartitions, "more partitions than an owner can name");
  RequireRising(Span(bounds));
  std::vector<std::unique_ptr<int64_t[]>> mine(parts), places(parts);
  std::vector<int64_t> counts(parts);
  int64_t wrong;
  {
    ReleaseGil release;
    const std::unique_ptr<uint16_t[]> memory(new uint16_t[values.shape(0)]);
    const std::span<uint16_t> owners(memory.get(), values.shape(0));
    wrong = FindOwners(Span(values), Span(bounds), owners, counts);
    if (wrong < 0) {
      std::vector<int64_t*> next_mine, next_places;
      for (size_t p = 0; p < parts; ++p) {
        next_mine.push_back((mine[p] = std::unique_ptr<int64_t[]>(new int64_t[counts[p]])).get());
        next_places.push_back((places[p] = std::unique_ptr<int64_t[]>(new int64_t[counts[p]])).get());
      }
      DealOut(Span(values), owners, next_mine, next_places);
    }
  }
  Require(wrong < 0, std::to_string(wrong < 0 ? 0 : values(wrong)) + " lies outside [" + std::to_string(bounds(0)) +
                         ", " + std::to_string(bounds(parts)) + ")");
  std::vector<std::pair<NewArray<int64_t>, NewArray<int64_t>>> result;
  for (size_t p = 0; p < parts; ++p) {
    result.emplace_back(HandOver(std::move(mine[p]), counts[p]), HandOver(std::move(places[p]), counts[p]));
  }
  return result;
}

void BindExpandEdges(const Array<const int32_t>& rows, const Array<const int64_t>& colptr,
                     const nb::ndarray<int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& out) {
  const int64_t num_edges = static_cast<int64_t>(rows.shape(0));
  Require(out.shape(0) == 2 && static_cast<int64_t>(out.shape(1)) == num_edges, "out must be [2, number of edges]");
  Require(colptr.shape(0) > 0, "colptr needs at least one entry");
  const std::span<const int64_t> ends = Span(colptr);
  Require(ends.front() == 0 && ends.back() == num_edges, "colptr must run from 0 to the number of edges");
  for (size_t t = 0; t + 1 < ends.size(); ++t) Require(ends[t] <= ends[t + 1], "colptr must not fall");
  ReleaseGil release;
  ExpandEdges(Span(rows), ends, out.data(), out.data() + num_edges);
}

using Floats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Scales = std::optional<Array<const double>>;

void BindDequantize(const Rows& packed, int bits, const Scales& scales, const Scales& zero_points, const Floats& out) {
  Require(bits == 8 || bits == 4 || bits == 2 || bits == 1, "codes have 8, 4, 2 or 1 bits");
  Require(packed.shape(0) == out.shape(0), "packed and out differ in length");
  Require(scales.has_value() == zero_points.has_value(), "scales and zero points come together");
  const int64_t elements = static_cast<int64_t>(out.shape(1));
  Require(elements <= INT64_MAX / 8 - 8, "rows have too many values");
  const int64_t code_bytes = (elements * bits + 7) / 8;
  const int64_t row_bytes = code_bytes + (scales ? 0 : static_cast<int64_t>(2 * sizeof(float)));
  Require(static_cast<int64_t>(packed.shape(1)) == row_bytes, "packed rows have another size than their values need");
  for (const Scales* each : {&scales, &zero_points}) {
    Require(!*each || (*each)->shape(0) == out.shape(1), "a scale and a zero point are needed for each value of a row");
  }
  const CodeRows rows{reinterpret_cast<const std::byte*>(packed.data()), static_cast<int64_t>(packed.shape(0)), row_bytes,
                      elements, bits};
  ReleaseGil release;
  if (scales) {
    DequantizeByColumn(rows, Span(*scales), Span(*zero_points), out.data());
  } else {
    DequantizeByRow(rows, out.data());
  }
}

}  // namespace

void BindRows(nb::module_& m) {
  using namespace nb::literals;
  nb::enum_<ReadOrder>(m, "ReadOrder")
      .value("GIVEN", ReadOrder::kGiven)
      .value("ASCENDING", ReadOrder::kAscending)
      .value("MEASURED", ReadOrder::kMeasured);
  nb::class_<OrderMeasurements>(m, "OrderMeasurements")
      .def(nb::init<>())
      .def("next", &OrderMeasurements::Next)
      .def("add", &OrderMeasurements::Add, "order"_a, "ns_per_row"_a);
  m.def("gather", &BindGather, "columns"_a.noconvert(), "bounds"_a.noconvert(), "positions"_a.noconvert(),
        "out"_a.noconvert(), nb::kw_only(), "order"_a = ReadOrder::kMeasured);
  m.def("copy_rows", &BindCopyRows, "source"_a.noconvert(), "rows"_a.noconvert().none(), "places"_a.noconvert().none(),
        "out"_a.noconvert(), nb::kw_only(), "first"_a = 0, "order"_a = ReadOrder::kMeasured);
  m.def("copy_rows_crc", &BindCopyRowsCrc, "source"_a.noconvert(), "rows"_a.noconvert().none(),
        "places"_a.noconvert().none(), "out"_a.noconvert(), "crc"_a, nb::kw_only(), "first"_a = 0);
  m.def("split_by_owner", &BindSplitByOwner, "values"_a.noconvert(), "bounds"_a.noconvert());
  m.def("dequantize", &BindDequantize, "packed"_a.noconvert(), "bits"_a, "scales"_a.noconvert().none(),
        "zero_points"_a.noconvert().none(), "out"_a.noconvert());
  m.def("expand_edges", &BindExpandEdges, "rows"_a.noconvert(), "colptr"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace gigl
