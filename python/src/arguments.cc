// Converts the arguments of Python calls to the C++ types CollectiveCall and CallOptions.
#include <chrono>
#include <cmath>
#include <string>

#include "core.h"

namespace tutti::python {
namespace {

template <class Enumeration>
Enumeration one_of(int number, const char* what) {
  if (number < 0 || number > 255 || !is_valid(static_cast<Enumeration>(number))) {
    raise_invalid(std::string("there is no ") + what + " of number " + std::to_string(number) +
                  ": take one of tutti._core's dictionaries");
  }
  return static_cast<Enumeration>(number);
}

Scale scale_of(nb::handle value, DataType type) {
  if (value.is_none()) return {};
  if (PyLong_Check(value.ptr())) {
    const long long integer = PyLong_AsLongLong(value.ptr());
    if (integer == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    return {.real = static_cast<double>(integer), .integer = integer};
  }
  const double real = PyFloat_AsDouble(value.ptr());
  if (real == -1.0 && PyErr_Occurred() != nullptr) throw nb::python_error();
  const bool whole = real == std::trunc(real) && std::abs(real) < 9e18;
  if (!whole && !is_floating(type)) {
    raise_invalid("scale is " + std::to_string(real) + ", and integers are multiplied by whole numbers");
  }
  return {.real = real, .integer = whole ? static_cast<std::int64_t>(real) : 1};
}

void take(Counts& from, std::vector<std::size_t>& into, std::span<const std::size_t>& span) {
  if (!from) return;
  into = std::move(*from);
  span = into;
}

}  // namespace

DataType data_type(int number) { return one_of<DataType>(number, "data type"); }

UniformCalls uniform_calls(int number) {
  if (number < 0 || number > static_cast<int>(UniformCalls::kAll)) raise_invalid("uniform is not 0, 1 or 2");
  return static_cast<UniformCalls>(number);
}

CallOptions call_options(std::int64_t timeout_ms, std::optional<std::uintptr_t> stream) {
  CallOptions options;
  options.timeout = std::chrono::milliseconds(timeout_ms);
  if (stream) options.stream = reinterpret_cast<void*>(*stream);
  return options;
}

void read_call(CallArguments& into, int kind, std::uintptr_t input, std::uintptr_t output, std::size_t count, int dtype,
               int op, std::int32_t root, int algorithm, std::int64_t timeout_ms, nb::handle scale,
               std::optional<std::uintptr_t> stream, Counts input_counts, Counts output_counts,
               Counts input_displacements, Counts output_displacements, int reduction, bool uniform, bool checksum) {
  CollectiveCall& call = into.call;
  call.kind = one_of<CollectiveKind>(kind, "collective");
  call.input = read_address(input);
  call.output = write_address(output);
  call.count = count;
  call.type = data_type(dtype);
  call.op = one_of<ReduceOp>(op, "operation");
  call.root = root;
  call.variable = input_counts.has_value() || output_counts.has_value();
  if (!call.variable && (input_displacements || output_displacements)) {
    raise_invalid("displacements were given without counts: a v-variant takes the counts of its blocks, too");
  }
  take(input_counts, into.input_counts, call.input_counts.counts);
  take(output_counts, into.output_counts, call.output_counts.counts);
  take(input_displacements, into.input_displacements, call.input_counts.displacements);
  take(output_displacements, into.output_displacements, call.output_counts.displacements);
  // A barrier has no data. All ranks must pass the same type, and Communicator::barrier() passes this one.
  if (!row_of(call.kind).has_data) call.type = DataType::kUint8;
  into.options = call_options(timeout_ms, stream);
  into.options.algorithm = one_of<Algorithm>(algorithm, "algorithm");
  into.options.scale = scale_of(scale, call.type);
  into.options.reduction = reduction_of(reduction, call.type);
  into.options.uniform = uniform;
  into.options.checksum = checksum;
}

}  // namespace tutti::python
