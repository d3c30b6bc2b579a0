// PyGroup: calls that start together (include/tutti/group.h), as a Python object.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "core.h"

namespace tutti::python {
namespace {

class PyGroup {
 public:
  ~PyGroup() {
    const WithoutLock guard;
    group_.reset();
    communicators_.clear();
  }

  void add(const PyCommunicator& to, int kind, std::uintptr_t input, std::uintptr_t output, std::size_t count,
           int dtype, int op, std::int32_t root, int algorithm, std::int64_t timeout_ms, nb::handle scale,
           std::optional<std::uintptr_t> stream, Counts input_counts, Counts output_counts, Counts input_displacements,
           Counts output_displacements, int reduction, bool uniform, bool checksum) {
    CallArguments arguments;
    read_call(arguments, kind, input, output, count, dtype, op, root, algorithm, timeout_ms, scale, stream,
              std::move(input_counts), std::move(output_counts), std::move(input_displacements),
              std::move(output_displacements), reduction, uniform, checksum);
    into(to, [&](Communicator& communicator) { return group_->add(communicator, arguments.call, arguments.options); });
  }

  void send(const PyCommunicator& to, std::uintptr_t address, std::size_t count, int dtype, std::int32_t peer,
            std::int64_t timeout_ms, std::optional<std::uintptr_t> stream) {
    const DataType type = data_type(dtype);
    const CallOptions options = call_options(timeout_ms, stream);
    into(to, [&](Communicator& communicator) {
      return group_->send(communicator, read_address(address), count, type, peer, options);
    });
  }

  void receive(const PyCommunicator& to, std::uintptr_t address, std::size_t count, int dtype, std::int32_t peer,
               std::int64_t timeout_ms, std::optional<std::uintptr_t> stream) {
    const DataType type = data_type(dtype);
    const CallOptions options = call_options(timeout_ms, stream);
    into(to, [&](Communicator& communicator) {
      return group_->receive(communicator, write_address(address), count, type, peer, options);
    });
  }

  void run() {
    const Released used{take()};
    wait_for(used.communicators, [&] {
      const std::lock_guard lock(mutex_);
      return group_->run();
    });
  }

  PyWork start() {
    Released used{take()};
    Work work = value_or_raise(unlocked([&] {
      const std::lock_guard lock(mutex_);
      return group_->start();
    }));
    return PyWork(std::move(used.communicators), std::move(work));
  }

  void drop() {
    unlocked([&] {
      const std::lock_guard lock(mutex_);
      group_.emplace();
      communicators_.clear();
    });
  }

 private:
  // Communicators that are released without the interpreter lock, also after an exception: the last reference destroys
  // the communicator, which can wait for other threads.
  struct Released {
    explicit Released(Communicators list) : communicators(std::move(list)) {}
    Released(const Released&) = delete;
    Released& operator=(const Released&) = delete;
    ~Released() {
      const WithoutLock guard;
      communicators.clear();
    }
    Communicators communicators;
  };

  Communicators take() {
    return unlocked([&] {
      const std::lock_guard lock(mutex_);
      return std::exchange(communicators_, {});
    });
  }

  template <class Function>
  void into(const PyCommunicator& to, const Function& function) {
    Communicator& communicator = *to;
    ok_or_raise(unlocked([&] {
      const std::lock_guard lock(mutex_);
      Status status = function(communicator);
      const bool known = !communicators_.empty() && communicators_.back() == to.get();
      if (!known) communicators_.push_back(to.get());
      return status;
    }));
  }

  std::mutex mutex_;             // needed because a C++ Group may be used by one thread at a time only
  Communicators communicators_;  // the communicators of the calls in group_; they must live longer than the calls
  std::optional<Group> group_{std::in_place};
};

}  // namespace

void add_group(nb::module_& module) {
  using nb::arg;
  nb::class_<PyGroup>(module, "Group", nb::is_weak_referenceable())
      .def(nb::init<>())
      .def("add", &PyGroup::add, arg("communicator"), arg("kind"), arg("input"), arg("output"), arg("count"),
           arg("dtype"), arg("op") = 0, arg("root") = 0, arg("algorithm") = 0, arg("timeout_ms") = 0,
           arg("scale") = nb::none(), arg("stream") = nb::none(), arg("input_counts") = nb::none(),
           arg("output_counts") = nb::none(), arg("input_displacements") = nb::none(),
           arg("output_displacements") = nb::none(), arg("reduction") = 0, arg("uniform") = false,
           arg("checksum") = false)
      .def("send", &PyGroup::send, arg("communicator"), arg("address"), arg("count"), arg("dtype"), arg("peer"),
           arg("timeout_ms") = 0, arg("stream") = nb::none())
      .def("receive", &PyGroup::receive, arg("communicator"), arg("address"), arg("count"), arg("dtype"), arg("peer"),
           arg("timeout_ms") = 0, arg("stream") = nb::none())
      .def("run", &PyGroup::run)
      .def("start", &PyGroup::start)
      .def("drop", &PyGroup::drop);
}

}  // namespace tutti::python
