// The declarations that the files of the module tutti._core share: the C++ objects behind the Python objects, and their
// interaction with the interpreter.
//
// The Python objects may be used from any thread. Code that waits for other ranks runs without the interpreter lock
// (GIL), so that other Python threads can run, except some calls of Work::test() in work.cc, which wait only after a
// failed operation. Each object keeps the communicators alive that it needs. The memory at an address must be kept
// alive by the caller, or by PyWork::keep().
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

// Raises the Python exception that tutti/errors.py creates for the error. raise_invalid() is for an error of code
// kInvalidArgument. Both are called with the interpreter lock held.
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

// Releases the interpreter lock in the constructor and takes it again in the destructor.
//
// If a (daemon) thread asks for the lock after the interpreter has ended, Python ends the thread with pthread_exit(),
// which crashes in C++ code. So in this case the destructor does not ask for the lock but sleeps for ever, as Python
// itself does from version 3.14 on.
class WithoutLock {
 public:
  WithoutLock();
  ~WithoutLock();
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;

 private:
  PyThreadState* state_;
};

// Runs `function` without the interpreter lock.
template <class Function>
auto unlocked(const Function& function) {
  const WithoutLock guard;
  return function();
}

// The number of fork() calls between the process that loaded the module and this one. Objects store this number at
// their creation. If it differs later, the object was created before a fork(), by a parent process of this one.
std::uint64_t process_generation();

using Communicators = std::vector<std::shared_ptr<Communicator>>;

// ---- interrupt.cc

bool in_main_thread();

// Installs the handler of Ctrl-C (SIGINT) if it is not installed yet. Does nothing in other threads than the main
// thread, or if SIGINT does not have Python's own handler. Called with the interpreter lock held.
void watch_interrupts();

// Marks a wait of the main thread for calls on these communicators: if Ctrl-C is pressed while this object exists, and
// it still exists after kGrace (interrupt.cc), the communicators are aborted. This needs the handler of
// watch_interrupts(). In other threads this object has no effect.
class Interruptible {
 public:
  explicit Interruptible(std::span<const std::shared_ptr<Communicator>> communicators);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  bool active_;
};

// Called after a call has failed. If the calling thread is the main thread, and the communicators were aborted because
// of Ctrl-C (Interruptible), makes Python's handler raise its exception, which is KeyboardInterrupt. Otherwise returns.
void raise_if_interrupted();

// Runs `function`, which makes calls on `communicators`, without the interpreter lock. In the main thread Ctrl-C aborts
// the communicators, so that `function` returns. If `function` fails, raises its error as an exception, or
// KeyboardInterrupt after Ctrl-C; otherwise returns its value.
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

// One rank's communicator as a Python object. The C++ Communicator is destroyed with the last object that uses it: this
// one, works of its calls, memory that it allocated or registered, and groups with calls on it.
class PyCommunicator {
 public:
  explicit PyCommunicator(std::unique_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)), generation_(process_generation()) {}
  ~PyCommunicator() {
    const WithoutLock guard;
    communicator_.reset();
  }

  // Raises InvalidArgumentError in a forked child of the process that created the communicator.
  const std::shared_ptr<Communicator>& get() const;
  Communicator& operator*() const { return *get(); }
  // get() as a span of one element, for wait_for().
  std::span<const std::shared_ptr<Communicator>> one() const { return {&get(), 1}; }
  // For reading properties, which is also allowed in a forked child.
  const Communicator& inspect() const { return *communicator_; }

 private:
  std::shared_ptr<Communicator> communicator_;
  std::uint64_t generation_;
};

// An operation in progress as a Python object. The Python object that is passed to keep() (the arrays of the call) is
// kept alive until the operation has ended, even if this PyWork is destroyed earlier.
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
  friend class DetachedOperations;
  struct State {
    Communicators communicators;  // declared before `work`, so that they are destroyed after the Work
    Work work;
    std::uint64_t generation;
  };
  void require_owner() const;

  std::unique_ptr<State> state_;
  nb::object kept_;
};

// ---- arguments.cc

// The arguments of run(), start() and Group.add() in C++ types. The spans in `call` refer to the vectors of this
// object, so a CallArguments must not be copied or moved.
struct CallArguments {
  CollectiveCall call;
  CallOptions options;
  std::vector<std::size_t> input_counts, output_counts, input_displacements, output_displacements;
};
using Counts = std::optional<std::vector<std::size_t>>;

// Converts the arguments from Python, and stores them in `into`. Raises InvalidArgumentError for a number that is not a
// value of its enumeration, for displacements without counts, for a reduction that reduction_of() refuses, and for a
// scale that the type cannot have.
void read_call(CallArguments& into, int kind, std::uintptr_t input, std::uintptr_t output, std::size_t count, int dtype,
               int op, std::int32_t root, int algorithm, std::int64_t timeout_ms, nb::handle scale,
               std::optional<std::uintptr_t> stream, Counts input_counts, Counts output_counts,
               Counts input_displacements, Counts output_displacements, int reduction, bool uniform, bool checksum);

DataType data_type(int number);
UniformCalls uniform_calls(int number);
CallOptions call_options(std::int64_t timeout_ms, std::optional<std::uintptr_t> stream);
inline const void* read_address(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }
inline void* write_address(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

// ---- reductions.cc

// Returns the user reduction with this number, for elements of `type`. For number 0, returns a UserReduction without a
// function, which means that the call has none. Raises InvalidArgumentError for an unknown number, or if the reduction
// is for elements of another size.
UserReduction reduction_of(int number, DataType type);

// ---- registration: each file adds its functions and classes to the module
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
