#include "binding.h"
#include "crc32c.h"

namespace gigl {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::byte> BytesOf(const Bytes& array) {
  return {reinterpret_cast<const std::byte*>(array.data()), array.shape(0)};
}

template <uint32_t (*kKernel)(std::span<const std::byte>, uint32_t)>
uint32_t BindCrc32c(const Bytes& data, uint32_t crc) {
  nb::gil_scoped_release release;
  return kKernel(BytesOf(data), crc);
}

uint32_t BindCopyCrc32c(const Bytes& data, const Array<uint8_t>& out, uint32_t crc) {
  Require(data.shape(0) == out.shape(0), "data and out differ in length");
  nb::gil_scoped_release release;
  return CopyCrc32c(BytesOf(data), reinterpret_cast<std::byte*>(out.data()), crc);
}

void BindCrc32cBlocks(const Bytes& data, size_t block_bytes, const Array<uint32_t>& sums) {
  Require(block_bytes > 0, "block_bytes must be positive");
  Require(sums.shape(0) == data.shape(0) / block_bytes + (data.shape(0) % block_bytes != 0),
          "sums must have one entry per block");
  nb::gil_scoped_release release;
  Crc32cBlocks(BytesOf(data), block_bytes, Span(sums));
}

}  // namespace

void BindChecksums(nb::module_& m) {
  using namespace nb::literals;
  m.def("crc32c", &BindCrc32c<Crc32c>, "data"_a.noconvert(), "crc"_a = 0);
  m.def("crc32c_strands", &BindCrc32c<Crc32cStrands>, "data"_a.noconvert(), "crc"_a = 0);
  m.def("crc32c_portable", &BindCrc32c<Crc32cPortable>, "data"_a.noconvert(), "crc"_a = 0);
  m.def("copy_crc32c", &BindCopyCrc32c, "data"_a.noconvert(), "out"_a.noconvert(), "crc"_a = 0);
  m.def("crc32c_blocks", &BindCrc32cBlocks, "data"_a.noconvert(), "block_bytes"_a, "sums"_a.noconvert());
  m.def("crc32c_combine", &Crc32cCombine, "first"_a, "second"_a, "second_bytes"_a);
}

}  // namespace gigl
