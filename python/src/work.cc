// Work: an operation under way.
#include <algorithm>

#include "core.h"

namespace tutti::python {

// Operations whose Work was dropped while they ran, with what they use. Never destroyed: at the interpreter's end what
// a running operation writes to has to stay.
class Orphans {
 public:
  // Both with the interpreter's lock, which let_go_ended() gives up.
  static void take(PyWork work) { list().push_back(std::move(work)); }
  static void let_go_ended() {
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
  Orphans::let_go_ended();
}

PyWork::~PyWork() {
  if (state_ == nullptr) return;  // moved away
  if (kept_.is_valid() && state_->generation == process_generation() && !state_->work.test()) {
    Orphans::take(std::move(*this));
    return;
  }
  const WithoutLock guard;
  state_.reset();
}

void PyWork::require_owner() const {
  if (state_->generation != process_generation()) raise_invalid("this work is a parent process's: ask there");
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
