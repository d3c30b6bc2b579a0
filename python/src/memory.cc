// PyMemory: memory that the ranks of one machine access directly, as a Python object with the buffer protocol.
#include "core.h"

namespace tutti::python {

class PyMemory {
 public:
  PyMemory(std::shared_ptr<Communicator> communicator, Memory memory)
      : communicator_(std::move(communicator)), memory_(std::move(memory)) {}
  ~PyMemory() { free(); }

  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(held().data()); }
  std::size_t size() const { return memory_ ? memory_->size() : 0; }

  void release() {
    if (views_ > 0) {
      PyErr_SetString(PyExc_BufferError, "arrays or memoryviews of this memory are alive: drop them first");
      throw nb::python_error();
    }
    free();
  }

  static int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    auto& memory = *nb::inst_ptr<PyMemory>(self);
    if (!memory.memory_) {
      PyErr_SetString(PyExc_BufferError, "this memory was released");
      return -1;
    }
    const auto size = static_cast<Py_ssize_t>(memory.memory_->size());
    if (PyBuffer_FillInfo(view, self, memory.memory_->data(), size, 0, flags) != 0) return -1;
    ++memory.views_;
    return 0;
  }
  static void release_buffer(PyObject* self, Py_buffer*) { --nb::inst_ptr<PyMemory>(self)->views_; }

 private:
  const Memory& held() const {
    if (!memory_) raise_invalid("this memory was released");
    return *memory_;
  }
  void free() {
    // The memory is moved out of this object first, because another thread may use the object while the interpreter
    // lock is released.
    std::optional<Memory> memory = std::move(memory_);
    std::shared_ptr<Communicator> communicator = std::move(communicator_);
    memory_.reset();
    const WithoutLock guard;
    memory.reset();
    communicator.reset();
  }

  std::shared_ptr<Communicator> communicator_;  // declared before memory_, so that it is destroyed after the memory
  std::optional<Memory> memory_;                // nothing after release()
  std::size_t views_ = 0;  // number of arrays and memoryviews of the memory; guarded by the interpreter lock
};

nb::object new_memory(const std::shared_ptr<Communicator>& communicator, Memory memory) {
  return nb::cast(new PyMemory(communicator, std::move(memory)), nb::rv_policy::take_ownership);
}

void add_memory(nb::module_& module) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&PyMemory::get_buffer)},
                                {Py_bf_releasebuffer, reinterpret_cast<void*>(&PyMemory::release_buffer)},
                                {0, nullptr}};
  nb::class_<PyMemory>(module, "Memory", nb::is_weak_referenceable(), nb::type_slots(slots))
      .def_prop_ro("address", &PyMemory::address)
      .def_prop_ro("size", &PyMemory::size)
      .def("release", &PyMemory::release);
}

}  // namespace tutti::python
