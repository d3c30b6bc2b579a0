// Python's arrays: the fast path of blocking calls on NumPy arrays (quick()), and the description of arrays that other
// libraries export through DLPack (describe()).
#include <nanobind/ndarray.h>

#include "core.h"

namespace tutti::python {
namespace {

// numpy.ndarray; null until tutti/arrays.py has set it. A borrowed reference, because NumPy is never unloaded.
PyTypeObject* array_type = nullptr;

void set_array_type(nb::handle type) { array_type = reinterpret_cast<PyTypeObject*>(type.ptr()); }

// A view of an array's memory (Py_buffer). The array cannot be freed or resized until this object is destroyed. Used
// with the interpreter lock (GIL) held.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() {
    if (held_) PyBuffer_Release(&view_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Takes a view of `array`. Returns false, and sets no exception, if `array` is not a numpy.ndarray (also if it is of
  // a subclass), if it is not contiguous in C order, if it is read-only although `writable` is true, or if it has no
  // buffer for another reason.
  bool take(nb::handle array, bool writable) {
    if (Py_TYPE(array.ptr()) != array_type) return false;
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    held_ = PyObject_GetBuffer(array.ptr(), &view_, flags) == 0;
    if (!held_) PyErr_Clear();
    return held_;
  }

  void* data() const { return view_.buf; }
  std::size_t bytes() const { return static_cast<std::size_t>(view_.len); }

  // The element type. Returns nothing if it is not a DataType, for example for bool and for int16.
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

// Returns the number of elements of one block, for a collective with `in` elements in the input and `out` elements in
// the output. Returns nothing if the two numbers do not match.
std::optional<std::size_t> block(CollectiveKind kind, std::size_t in, std::size_t out, std::size_t ranks) {
  const CollectiveRow& row = row_of(kind);
  const std::size_t blocks_in = block_count(row.input, static_cast<std::uint32_t>(ranks));
  const std::size_t blocks_out = block_count(row.output, static_cast<std::uint32_t>(ranks));
  if (!row.has_data || blocks_in == 0 || in % blocks_in != 0) return std::nullopt;
  const std::size_t count = in / blocks_in;
  return out == count * blocks_out ? std::optional(count) : std::nullopt;
}

// The fast path of a blocking collective. Runs the collective and returns true if both arrays are contiguous NumPy
// arrays of the same DataType, the array for the result is writable, their lengths match, `op` is not negative, and
// `root` is an integer; `output` None means in place. Otherwise does nothing and returns false; tutti/call.py then
// makes the call, which handles other types of arrays and reports errors.
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

// Describes an array that has a method __dlpack__, for tutti/arrays.py. Returns the tuple (address, number of elements,
// whether C-contiguous, type code, bits of an element, whether read-only, device type, device number, owner), with the
// numbers of dlpack.h. Returns None if the array cannot be exported. The memory stays valid as long as `owner` exists.
nb::object describe(nb::handle array) {
  bool read_only = false;
  nb::ndarray<> writable;
  nb::ndarray<nb::ro> readable;
  if (!nb::try_cast(array, writable, false)) {
    if (!nb::try_cast(array, readable, false)) return nb::none();
    read_only = true;
  }
  const auto describe_array = [&](auto& it) {
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
  if (read_only) return describe_array(readable);
  return describe_array(writable);
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
