// The module tutti._core: Tutti's C++ API with addresses instead of arrays, and numbers instead of enumerators.
// tutti/_core.pyi declares the names.
#include "core.h"

namespace tutti::python {
namespace {

template <class Enumeration>
void add_name(nb::dict& names, Enumeration value) {
  const std::string_view name = to_string(value);
  names[nb::str(name.data(), name.size())] = static_cast<int>(value);
}

template <class Enumeration>
nb::dict numbers_by_name(std::span<const Enumeration> values) {
  nb::dict names;
  for (const Enumeration value : values) add_name(names, value);
  return names;
}

}  // namespace

NB_MODULE(_core, module) {
  // No warnings about leaks, because it is not an error if a communicator still exists when the program ends.
  nb::set_leak_warnings(false);
  module.attr("version") = nb::str(version().data(), version().size());
  module.attr("data_types") = numbers_by_name(all_data_types());
  module.attr("reduce_ops") = numbers_by_name(all_reduce_ops());
  module.attr("collectives") = numbers_by_name(all_collectives());
  nb::dict buffers;
  for (const CollectiveKind kind : all_collectives()) {
    const CollectiveRow& row = row_of(kind);
    buffers[nb::str(row.name.data(), row.name.size())] =
        nb::make_tuple(row.reduces, row.input == BlockSet::kAll, row.output == BlockSet::kAll,
                       row.root == RootHas::kTheInput, row.root == RootHas::kTheOutput);
  }
  module.attr("collective_buffers") = buffers;
  nb::dict algorithms;
  add_name(algorithms, Algorithm::kAuto);
  for (const Algorithm algorithm : all_algorithms()) add_name(algorithms, algorithm);
  add_name(algorithms, Algorithm::kUser);
  module.attr("algorithms") = algorithms;
  nb::dict sizes;
  for (const DataType type : all_data_types()) sizes[nb::int_(static_cast<int>(type))] = size_of(type);
  module.attr("type_sizes") = sizes;
  add_errors(module);
  add_interpreter(module);
  add_interrupts(module);
  add_arrays(module);
  add_reductions(module);
  add_work(module);
  add_memory(module);
  add_communicator(module);
  add_group(module);
}

}  // namespace tutti::python
