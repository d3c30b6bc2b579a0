// Python's arrays: the short way of a blocking call on NumPy arrays, and what an array of DLPack is.
#include <nanobind/ndarray.h>

#include "core.h"

namespace tutti::python {
namespace {

PyTypeObject* array_type = nullptr;  // numpy.ndarray; NumPy holds it

void set_array_type(nb::handle type) { array_type = reinterpret_cast<PyTypeObject*>(type.ptr()); }

// The memory of an array, held until this is gone. With the interpreter's lock.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() {
    if (held_) PyBuffer_Release(&view_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // False: not a NumPy array, or not such a one. No exception is set.
  bool take(nb::handle array, bool writable) {
    if (Py_TYPE(array.ptr()) != array_type) return false;
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    held_ = PyObject_GetBuffer(array.ptr(), &view_, flags) == 0;
    if (!held_) PyErr_Clear();
    return held_;
  }

  void* data() const { return view_.buf; }
  std::size_t bytes() const { return static_cast<std::size_t>(view_.len); }

  // Nothing for what is no DataType, and for bool.
  std::optional<DataType> type() const {
    if (view_.format == nullptr || view_.format[0] == '\0' || view_.format[1] != '\0') return std::nullopt;
    const bool wide = view_.itemsize == 8;
    switch (view_.format[0]) {
      case 'f': return DataType::kFloat32;
      case 'd': return DataType::kFloat64;
      case 'e': return DataType::kFloat16;
      case 'b': return DataType::kInt8;
      case 'B': return DataType::kUint8;
      case 'i': return DataType::kInt32;
      case 'I': return DataType::kUint32;
      case 'l':
      case 'q': return wide ? DataType::kInt64 : DataType::kInt32;
      case 'L':
      case 'Q': return wide ? DataType::kUint64 : DataType::kUint32;
      default: return std::nullopt;
    }
  }

 private:
  Py_buffer view_;
  bool held_ = false;
};

// Elements of one block of a call with so many elements in and out, or nothing where they do not fit each other.
std::optional<std::size_t> block(CollectiveKind kind, std::size_t in, std::size_t out, std::size_t ranks) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce: return in == out ? std::optional(in) : std::nullopt;
    case CollectiveKind::kAllGather: return out == ranks * in ? std::optional(in) : std::nullopt;
    case CollectiveKind::kReduceScatter: return in == ranks * out ? std::optional(out) : std::nullopt;
    case CollectiveKind::kAllToAll: return in == out && in % ranks == 0 ? std::optional(in / ranks) : std::nullopt;
    default: return std::nullopt;
  }
}

// The collective, where both are contiguous NumPy arrays of one of Tutti's types and fit each other; `output` None: in
// place. False: they are not; nothing has happened, and tutti/arrays.py finds out what they are or what is wrong.
bool quick(const PyCommunicator& self, int kind, nb::handle input, nb::handle output, int op, nb::handle root) {
  const bool in_place = output.is_none();
  std::int32_t root_rank = 0;
  if (!nb::try_cast(root, root_rank, false)) return false;
  Buffer in, out;
  if (op < 0 || kind < 0 || !in.take(input, in_place) || (!in_place && !out.take(output, true))) return false;
  const Buffer& to = in_place ? in : out;
  const std::optional<DataType> type = in.type();
  if (!type || to.type() != type) return false;
  CollectiveCall call;
  call.kind = static_cast<CollectiveKind>(kind);
  Communicator& communicator = *self;
  const std::size_t bytes = size_of(*type);
  const auto count =
      block(call.kind, in.bytes() / bytes, to.bytes() / bytes, static_cast<std::size_t>(communicator.size()));
  if (!count) return false;
  call.input = in.data();
  call.output = to.data();
  call.count = *count;
  call.type = *type;
  call.op = static_cast<ReduceOp>(op);
  call.root = root_rank;
  wait_for(self.one(), [&] { return communicator.run(call); });
  return true;
}

// What tutti/arrays.py asks of an array that has __dlpack__: (address, elements, C-contiguous, code, bits, read-only,
// device type, device, owner), numbers as in dlpack.h; None where it gives none. The owner keeps the memory.
nb::object describe(nb::handle array) {
  bool read_only = false;
  nb::ndarray<> writable;
  nb::ndarray<nb::ro> readable;
  if (!nb::try_cast(array, writable, false)) {
    if (!nb::try_cast(array, readable, false)) return nb::none();
    read_only = true;
  }
  const auto tell = [&](auto& it) {
    bool contiguous = true;
    std::int64_t expected = 1;
    for (std::size_t i = it.ndim(); i-- > 0;) {
      contiguous = contiguous && (it.shape(i) <= 1 || it.stride(i) == expected);
      expected *= static_cast<std::int64_t>(it.shape(i));
    }
    auto* owner = new std::remove_reference_t<decltype(it)>(it);
    nb::capsule keep(owner, [](void* held) noexcept { delete static_cast<decltype(owner)>(held); });
    return nb::make_tuple(reinterpret_cast<std::uintptr_t>(it.data()), it.size(), contiguous || it.size() == 0,
                          static_cast<int>(it.dtype().code), static_cast<int>(it.dtype().bits * it.dtype().lanes),
                          read_only, static_cast<int>(it.device_type()), static_cast<int>(it.device_id()), keep);
  };
  if (read_only) return tell(readable);
  return tell(writable);
}

}  // namespace

void add_arrays(nb::module_& module) {
  module.def("set_array_type", &set_array_type, nb::arg("type"));
  module.def("describe", &describe, nb::arg("array"));
}

void add_quick(nb::class_<PyCommunicator>& type) {
  type.def("quick", &quick, nb::arg("kind"), nb::arg("input").none(), nb::arg("output").none(), nb::arg("op"),
           nb::arg("root"));
}

}  // namespace tutti::python
