// Leases of slots in memory that two processes share.

#include <unistd.h>

#include <memory>
#include <string>

#include "binding.h"

namespace gigl {
namespace {

// Gives a slot back when it ends, without a line of Python, in which an interrupt (Ctrl-C) could arrive.
class SlotLease {
 public:
  SlotLease(Array<uint8_t> lent, Array<uint8_t> flags, size_t slot)
      : lent_(std::move(lent)), flags_(std::move(flags)), slot_(slot), pid_(getpid()) {
    lent_.data()[slot_] = 1;
  }
  SlotLease(const SlotLease&) = delete;

  ~SlotLease() {
    if (getpid() != pid_) return;  // a forked child drops its copy: the slot still belongs to the parent
    // In this order: once the flag is 0, the other process may fill the slot, and this one lend it again.
    lent_.data()[slot_] = 0;
    __atomic_store_n(flags_.data() + slot_, uint8_t{0}, __ATOMIC_RELEASE);
  }

 private:
  const Array<uint8_t> lent_;
  const Array<uint8_t> flags_;
  const size_t slot_;
  const pid_t pid_;
};

nb::capsule BindLeaseSlot(const Array<uint8_t>& lent, const Array<uint8_t>& flags, size_t slot) {
  const size_t count = flags.shape(0);
  Require(lent.shape(0) == count, "lent and flags differ in length");
  Require(slot < count, "slot " + std::to_string(slot) + " of " + std::to_string(count));
  auto lease = std::make_unique<SlotLease>(lent, flags, slot);
  nb::capsule capsule(lease.get(), [](void* p) noexcept { delete static_cast<SlotLease*>(p); });
  lease.release();
  return capsule;
}

}  // namespace

void BindSlots(nb::module_& m) {
  using namespace nb::literals;
  m.def("lease_slot", &BindLeaseSlot, "lent"_a.noconvert(), "flags"_a.noconvert(), "slot"_a);
}

}  // namespace gigl
