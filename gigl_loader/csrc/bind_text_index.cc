#include <algorithm>
#include <memory>
#include <string_view>

#include "binding.h"
#include "text_index.h"

namespace gigl {
namespace {

// The UTF-8 of a str, which owns the bytes. UnicodeEncodeError for half of a surrogate pair.
std::string_view Utf8(nb::handle text) {
  Py_ssize_t size;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<size_t>(size)};
}

template <typename T>
NewArray<T> Copied(std::span<const T> values) {
  std::unique_ptr<T[]> memory(new T[std::max<size_t>(values.size(), 1)]);
  std::copy(values.begin(), values.end(), memory.get());
  return HandOver(std::move(memory), values.size());
}

NewArray<int64_t> AddTexts(TextIndex& index, const nb::list& texts) {
  const size_t count = nb::len(texts);
  std::unique_ptr<int64_t[]> numbers(new int64_t[std::max<size_t>(count, 1)]);
  for (size_t i = 0; i < count; ++i) numbers[i] = index.Add(Utf8(texts[i]));
  return HandOver(std::move(numbers), count);
}

NewArray<int64_t> FindTexts(const Array<const uint8_t>& bytes, const Array<const int64_t>& offsets,
                            const Array<const int32_t>& slots, const nb::list& texts) {
  const TextIndexView index(Span(bytes), Span(offsets), Span(slots));
  const size_t count = nb::len(texts);
  std::unique_ptr<int64_t[]> numbers(new int64_t[std::max<size_t>(count, 1)]);
  for (size_t i = 0; i < count; ++i) numbers[i] = index.Find(Utf8(texts[i])).value_or(-1);
  return HandOver(std::move(numbers), count);
}

nb::list TextsAt(const Array<const uint8_t>& bytes, const Array<const int64_t>& offsets,
                 const Array<const int64_t>& numbers) {
  constexpr int32_t kNoSlots[] = {-1};
  const TextIndexView index(Span(bytes), Span(offsets), kNoSlots);
  nb::list texts;
  for (const int64_t number : Span(numbers)) {
    const std::string_view text = index.At(number);
    PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
    if (decoded == nullptr) throw nb::python_error();
    texts.append(nb::steal(decoded));
  }
  return texts;
}

}  // namespace

void BindTextIndex(nb::module_& m) {
  nb::class_<TextIndex>(m, "TextIndex")
      .def(nb::init<>())
      .def("add", AddTexts, nb::arg("texts"))
      .def("sort", [](TextIndex& index) { return Copied(std::span<const int64_t>(index.Sort())); })
      .def("arrays",
           [](const TextIndex& index) {
             return nb::make_tuple(Copied(index.bytes()), Copied(index.offsets()), Copied(index.slots()));
           })
      .def_prop_ro("nbytes", &TextIndex::nbytes)
      .def("__len__", &TextIndex::size);
  m.def("find_texts", FindTexts, nb::arg("bytes"), nb::arg("offsets"), nb::arg("slots"), nb::arg("texts"));
  m.def("texts_at", TextsAt, nb::arg("bytes"), nb::arg("offsets"), nb::arg("numbers"));
}

}  // namespace gigl
