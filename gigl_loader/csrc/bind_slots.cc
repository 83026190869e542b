// Leases of slots in memory that two processes share.

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "binding.h"

namespace gigl {
namespace {

// Gives adjacent slots back when it ends, without a line of Python, in which an interrupt (Ctrl-C) could arrive.
class SlotLease {
 public:
  SlotLease(Array<uint8_t> lent, Array<uint8_t> flags, size_t slot, size_t span)
      : lent_(std::move(lent)), flags_(std::move(flags)), slot_(slot), span_(span), pid_(getpid()) {
    std::fill_n(lent_.data() + slot_, span_, uint8_t{1});
  }
  SlotLease(const SlotLease&) = delete;

  ~SlotLease() {
    if (getpid() != pid_) return;  // a forked child drops its copy: the slot still belongs to the parent
    // In this order: once a flag is 0, the other process may fill the slot, and this one lend it again.
    std::fill_n(lent_.data() + slot_, span_, uint8_t{0});
    for (size_t slot = slot_; slot < slot_ + span_; ++slot) {
      __atomic_store_n(flags_.data() + slot, uint8_t{0}, __ATOMIC_RELEASE);
    }
  }

 private:
  const Array<uint8_t> lent_;
  const Array<uint8_t> flags_;
  const size_t slot_;
  const size_t span_;
  const pid_t pid_;
};

nb::capsule BindLeaseSlots(const Array<uint8_t>& lent, const Array<uint8_t>& flags, size_t slot, size_t span) {
  const size_t count = flags.shape(0);
  Require(lent.shape(0) == count, "lent and flags differ in length");
  Require(span >= 1 && span <= count && slot <= count - span,
          std::to_string(span) + " slots from slot " + std::to_string(slot) + " of " + std::to_string(count));
  auto lease = std::make_unique<SlotLease>(lent, flags, slot, span);
  nb::capsule capsule(lease.get(), [](void* p) noexcept { delete static_cast<SlotLease*>(p); });
  lease.release();
  return capsule;
}

}  // namespace

void BindSlots(nb::module_& m) {
  using namespace nb::literals;
  m.def("lease_slots", &BindLeaseSlots, "lent"_a.noconvert(), "flags"_a.noconvert(), "slot"_a, "span"_a);
}

}  // namespace gigl
