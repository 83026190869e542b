#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <limits>
#include <optional>
#include <string>

#include "binding.h"
#include "stop.h"

namespace gigl {

void BindStop(nb::module_& m) {
  using namespace nb::literals;
  nb::exception<Stopped>(m, "Stopped");
  nb::class_<StopFlag>(m, "StopFlag")
      .def("__init__", [](StopFlag* self, std::optional<double> seconds) {
        new (self) StopFlag(seconds.value_or(std::numeric_limits<double>::infinity()));
      }, "seconds"_a.none() = nb::none())
      .def("stop", &StopFlag::Stop, "reason"_a)
      .def("pause", &StopFlag::Pause)
      .def("resume", &StopFlag::Resume)
      .def_prop_ro("parked", &StopFlag::parked)
      .def_prop_ro("reason", &StopFlag::reason)
      .def_prop_ro("timed_out", &StopFlag::timed_out)
      .def("__enter__", [](nb::object self) {
        nb::cast<StopFlag&>(self).Enter();
        return self;
      })
      .def("__exit__", [](StopFlag&, nb::args) { StopFlag::Leave(); });
  m.def("current_stop_flag", []() { return StopFlag::Current(); }, nb::rv_policy::reference);
  m.def("check_stop", []() {
    StopFlag* const flag = StopFlag::Current();
    if (flag == nullptr) return;
    const ReleaseGil release;
    flag->Check();
  });
}

}  // namespace gigl
