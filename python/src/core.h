// What the files of the module tutti._core share: the C++ objects behind Python's, and how they meet the interpreter.
//
// Python's objects may be used from any thread. Whatever can wait runs without the interpreter's lock, destructors
// included; whatever an operation needs (its communicator) is held by its object.
#pragma once

#include <nanobind/nanobind.h>
#include <tutti/tutti.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tutti::python {

namespace nb = nanobind;

// ---- errors.cc

// Raises the exception that tutti/errors.py makes of the error. With the interpreter's lock.
[[noreturn]] void raise(const Error& error);
[[noreturn]] void raise_invalid(std::string message);

template <class T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(result).value();
}
inline void ok_or_raise(const Status& status) {
  if (!status) raise(status.error());
}

// ---- interpreter.cc

// Gives the interpreter's lock up for as long as it lives.
//
// A thread that asks for the lock when the interpreter has ended is ended by pthread_exit(), which C++ frames do not
// survive: so such a thread, a daemon's, sleeps for good here instead, as it does from Python 3.14 on.
class WithoutLock {
 public:
  WithoutLock();
  ~WithoutLock();
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;

 private:
  PyThreadState* state_;
};

// Runs `function` without the interpreter's lock.
template <class Function>
auto unlocked(const Function& function) {
  const WithoutLock guard;
  return function();
}

// How many forks this process is away from the one that loaded the module: what was made with another number belongs to
// a parent.
std::uint64_t process_generation();

using Communicators = std::vector<std::shared_ptr<Communicator>>;

// ---- interrupt.cc

bool in_main_thread();

// Puts the handler of Ctrl-C in place where that was not done yet. With the interpreter's lock.
void watch_interrupts();

// While it lives the main thread waits for these communicators, and Ctrl-C aborts them; in other threads nothing.
class Interruptible {
 public:
  explicit Interruptible(std::span<const std::shared_ptr<Communicator>> communicators);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  bool counts_;
};

// After a call that failed: raises KeyboardInterrupt where Ctrl-C is why.
void raise_if_interrupted();

// Runs `function` without the interpreter's lock, ended by Ctrl-C; raises what it fails with.
template <class Function>
auto wait_for(std::span<const std::shared_ptr<Communicator>> communicators, const Function& function) {
  auto result = unlocked([&] {
    const Interruptible guard(communicators);
    return function();
  });
  if (!result) {
    raise_if_interrupted();
    raise(result.error());
  }
  if constexpr (!std::is_same_v<decltype(result), Status>) return std::move(result).value();
}

// ---- the objects

// One rank's membership. The C++ object ends with the last of this, its works, its memories and the groups that use it.
class PyCommunicator {
 public:
  explicit PyCommunicator(std::unique_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)), generation_(process_generation()) {}
  ~PyCommunicator() {
    const WithoutLock guard;
    communicator_.reset();
  }

  // Raises InvalidArgumentError in a process that was forked from the owner's.
  const std::shared_ptr<Communicator>& get() const;
  Communicator& operator*() const { return *get(); }
  // As get(), for wait_for().
  std::span<const std::shared_ptr<Communicator>> one() const { return {&get(), 1}; }
  // Of what can be read in a forked process, too.
  const Communicator& inspect() const { return *communicator_; }

 private:
  std::shared_ptr<Communicator> communicator_;
  std::uint64_t generation_;
};

// An operation under way. What it was given to keep lives until the operation has ended, however long this does.
class PyWork {
 public:
  PyWork(Communicators communicators, Work work);
  PyWork(PyWork&&) = default;
  PyWork& operator=(PyWork&&) = default;
  ~PyWork();

  void wait();
  bool test();
  void keep(nb::object object) { kept_ = std::move(object); }

 private:
  friend class Orphans;
  struct State {
    Communicators communicators;  // before the work: it ends after it
    Work work;
    std::uint64_t generation;
  };
  void require_owner() const;

  std::unique_ptr<State> state_;
  nb::object kept_;
};

// ---- arguments.cc

// The arguments of run(), start() and Group.add() as C++'s; holds what the spans point to, so it stays where it is.
struct CallArguments {
  CollectiveCall call;
  CallOptions options;
  std::vector<std::size_t> input_counts, output_counts, input_displacements, output_displacements;
};
using Counts = std::optional<std::vector<std::size_t>>;

// Reads them from Python's. Raises InvalidArgumentError for numbers that are none of an enumeration's.
void read_call(CallArguments& into, int kind, std::uintptr_t input, std::uintptr_t output, std::size_t count, int dtype,
               int op, std::int32_t root, int algorithm, std::int64_t timeout_ms, nb::handle scale,
               std::optional<std::uintptr_t> stream, Counts input_counts, Counts output_counts,
               Counts input_displacements, Counts output_displacements, int reduction);

DataType data_type(int number);
CallOptions call_options(std::int64_t timeout_ms, std::optional<std::uintptr_t> stream);
inline const void* read_address(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }
inline void* write_address(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

// ---- reductions.cc

// The user reduction of that number, or none for 0. Raises InvalidArgumentError for an unknown number.
UserReduction reduction_of(int number, DataType type);

// ---- what each file adds to the module
void add_errors(nb::module_& module);
void add_interpreter(nb::module_& module);
void add_interrupts(nb::module_& module);
void add_arrays(nb::module_& module);
void add_quick(nb::class_<PyCommunicator>& type);
void add_reductions(nb::module_& module);
void add_work(nb::module_& module);
void add_memory(nb::module_& module);
void add_communicator(nb::module_& module);
void add_group(nb::module_& module);

nb::object new_memory(const std::shared_ptr<Communicator>& communicator, Memory memory);

}  // namespace tutti::python
