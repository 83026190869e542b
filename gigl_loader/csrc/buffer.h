// Scratch memory that is reused from batch to batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

namespace gigl {

// A growing array of plain values. Growth leaves new elements unset (std::vector would write them
// twice), and clear() keeps the memory, so that warm pages serve the next batch.
template <typename T>
class Buffer {
 public:
  // Makes room for `count` more elements and returns where they go.
  T* Extend(size_t count) {
    if (size_ + count > capacity_) Grow(size_ + count);
    T* end = data_.get() + size_;
    size_ += count;
    return end;
  }
  // Makes room for `count` elements in all without adding any.
  void Reserve(size_t count) {
    if (count > capacity_) Grow(count);
  }
  void Push(T value) { *Extend(1) = value; }
  void Clear() { size_ = 0; }

  // Keeps the first `count` elements.
  void Truncate(size_t count) { size_ = count; }

  // Removes the elements at these indices, which ascend.
  void Remove(std::span<const int64_t> indices) {
    size_t to = indices.empty() ? size_ : static_cast<size_t>(indices[0]);
    for (size_t i = 0; i < indices.size(); ++i) {
      const size_t from = static_cast<size_t>(indices[i]) + 1;
      const size_t end = i + 1 < indices.size() ? static_cast<size_t>(indices[i + 1]) : size_;
      std::memmove(data_.get() + to, data_.get() + from, (end - from) * sizeof(T));
      to += end - from;
    }
    size_ = to;
  }

  // Gives the memory away and is empty.
  std::unique_ptr<T[]> Release() {
    size_ = capacity_ = 0;
    return std::move(data_);
  }

  // Asks for the memory where the next `count` elements will go. Stores leave the core in order, so
  // that one which has to wait for its cache line holds up all others.
  void PrefetchEnd(size_t count) const {
    const char* at = reinterpret_cast<const char*>(data_.get() + size_);
    const char* end = reinterpret_cast<const char*>(data_.get() + std::min(size_ + count, capacity_));
    for (; at < end; at += 64) __builtin_prefetch(at, 1, 3);
  }

  size_t size() const { return size_; }
  T* data() { return data_.get(); }
  size_t nbytes() const { return capacity_ * sizeof(T); }  // of memory, used or not
  T operator[](size_t i) const { return data_[i]; }
  std::span<const T> view() const { return {data_.get(), size_}; }

 private:
  void Grow(size_t needed) {
    const size_t capacity = std::max(needed, capacity_ + capacity_ / 2);
    std::unique_ptr<T[]> data(new T[capacity]);
    if (size_ > 0) std::memcpy(data.get(), data_.get(), size_ * sizeof(T));
    data_ = std::move(data);
    capacity_ = capacity;
  }

  std::unique_ptr<T[]> data_;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace gigl
