// PyWork: an operation in progress, as a Python object.
#include <algorithm>

#include "core.h"

namespace tutti::python {

// The operations whose Python Work was destroyed while they were running, with the objects of PyWork::keep() that they
// use. The list is never destroyed, because a running operation may still write to its arrays after the interpreter has
// ended.
class DetachedOperations {
 public:
  // Both functions are called with the interpreter lock held. destroy_ended(), which each new PyWork calls, destroys
  // the operations that have ended; the lock is released while it does.
  static void take(PyWork work) { list().push_back(std::move(work)); }
  static void destroy_ended() {
    if (list().empty()) return;
    std::vector<PyWork> ended;
    auto& all = list();
    const auto first =
        std::partition(all.begin(), all.end(), [](const PyWork& one) { return !one.state_->work.test(); });
    std::move(first, all.end(), std::back_inserter(ended));
    all.erase(first, all.end());
  }

 private:
  static std::vector<PyWork>& list() {
    static auto* const all = new std::vector<PyWork>;
    return *all;
  }
};

PyWork::PyWork(Communicators communicators, Work work)
    : state_(new State{std::move(communicators), std::move(work), process_generation()}) {
  DetachedOperations::destroy_ended();
}

PyWork::~PyWork() {
  if (state_ == nullptr) return;  // this object was moved from
  if (kept_.is_valid() && state_->generation == process_generation() && !state_->work.test()) {
    DetachedOperations::take(std::move(*this));
    return;
  }
  const WithoutLock guard;
  state_.reset();
}

void PyWork::require_owner() const {
  if (state_->generation != process_generation())
    raise_invalid("this work was started before fork(): only the parent may use it");
}

void PyWork::wait() {
  require_owner();
  wait_for(state_->communicators, [&] { return state_->work.wait(); });
}

bool PyWork::test() {
  require_owner();
  return unlocked([&] { return state_->work.test(); });
}

void add_work(nb::module_& module) {
  nb::class_<PyWork>(module, "Work", nb::is_weak_referenceable())
      .def("wait", &PyWork::wait)
      .def("test", &PyWork::test)
      .def("keep", &PyWork::keep, nb::arg("object").none());
}

}  // namespace tutti::python
