// PyCommunicator: the functions of include/tutti/communicator.h for Python, with addresses of arrays (integers).
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "core.h"

namespace tutti::python {
namespace {

using Milliseconds = std::chrono::milliseconds;

// The longest pause between two checks for Ctrl-C and for the end of set-up.
constexpr std::chrono::microseconds kLongestPause = Milliseconds(2);

std::optional<UniqueId> unique_id_of(const std::optional<nb::bytes>& bytes) {
  if (!bytes) return std::nullopt;
  UniqueId id;
  if (bytes->size() != id.bytes.size()) {
    raise_invalid("a unique id has " + std::to_string(id.bytes.size()) + " bytes, this one " +
                  std::to_string(bytes->size()));
  }
  std::memcpy(id.bytes.data(), bytes->data(), id.bytes.size());
  return id;
}

nb::object communicator_or_none(std::unique_ptr<Communicator> communicator) {
  if (communicator == nullptr) return nb::none();
  return nb::cast(new PyCommunicator(std::move(communicator)), nb::rv_policy::take_ownership);
}

// Creates a communicator. In the main thread, set-up runs in a background thread while this function checks for Ctrl-C.
// In other threads, set-up runs in the thread itself.
Result<std::unique_ptr<Communicator>> create_interruptibly(const CommunicatorOptions& options) {
  if (!in_main_thread()) return unlocked([&] { return Communicator::create(options); });
  auto pending = unlocked([&] { return std::make_unique<PendingCommunicator>(Communicator::create_async(options)); });
  for (std::chrono::microseconds pause(20); !pending->test(); pause = std::min(2 * pause, kLongestPause)) {
    unlocked([&] { std::this_thread::sleep_for(pause); });
    if (PyErr_CheckSignals() == 0) continue;
    // The PendingCommunicator is leaked, because its destructor would wait for the end of set-up.
    (void)pending.release();
    throw nb::python_error();
  }
  return unlocked([&] { return pending->wait(); });
}

nb::object create(std::int32_t rank, std::int32_t size, std::string root, std::string job_id, std::string job_key_file,
                  std::string interface, std::optional<nb::bytes> unique_id, std::string transport, std::string attach,
                  std::optional<bool> encrypt, std::string node_id, std::optional<std::int32_t> device,
                  std::string device_calls, std::optional<int> uniform, std::optional<bool> checksum,
                  std::int64_t setup_timeout_ms, std::int64_t timeout_ms) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.root = std::move(root);
  options.job_id = std::move(job_id);
  options.job_key_file = std::move(job_key_file);
  options.interface = std::move(interface);
  options.unique_id = unique_id_of(unique_id);
  options.transport = std::move(transport);
  options.attach = std::move(attach);
  options.encrypt = encrypt;
  options.node_id = std::move(node_id);
  options.device = device;
  options.device_calls = std::move(device_calls);
  if (uniform) options.uniform = uniform_calls(*uniform);
  options.checksum = checksum;
  options.setup_timeout = Milliseconds(setup_timeout_ms);
  options.timeout = Milliseconds(timeout_ms);
  watch_interrupts();
  return communicator_or_none(value_or_raise(create_interruptibly(options)));
}

nb::list create_all(std::int32_t size, std::string transport, std::int32_t nodes, std::int64_t setup_timeout_ms,
                    std::int64_t timeout_ms) {
  CommunicatorOptions options;
  options.transport = std::move(transport);
  options.setup_timeout = Milliseconds(setup_timeout_ms);
  options.timeout = Milliseconds(timeout_ms);
  watch_interrupts();
  auto ranks = value_or_raise(unlocked([&] { return Communicator::create_all(size, options, nodes); }));
  nb::list list;
  for (auto& rank : ranks) list.append(communicator_or_none(std::move(rank)));
  return list;
}

void run(const PyCommunicator& self, int kind, std::uintptr_t input, std::uintptr_t output, std::size_t count,
         int dtype, int op, std::int32_t root, int algorithm, std::int64_t timeout_ms, nb::handle scale,
         std::optional<std::uintptr_t> stream, Counts input_counts, Counts output_counts, Counts input_displacements,
         Counts output_displacements, int reduction, bool uniform, bool checksum) {
  CallArguments arguments;
  read_call(arguments, kind, input, output, count, dtype, op, root, algorithm, timeout_ms, scale, stream,
            std::move(input_counts), std::move(output_counts), std::move(input_displacements),
            std::move(output_displacements), reduction, uniform, checksum);
  Communicator& communicator = *self;
  wait_for(self.one(), [&] { return communicator.run(arguments.call, arguments.options); });
}

PyWork start(const PyCommunicator& self, int kind, std::uintptr_t input, std::uintptr_t output, std::size_t count,
             int dtype, int op, std::int32_t root, int algorithm, std::int64_t timeout_ms, nb::handle scale,
             std::optional<std::uintptr_t> stream, Counts input_counts, Counts output_counts,
             Counts input_displacements, Counts output_displacements, int reduction, bool uniform, bool checksum) {
  CallArguments arguments;
  read_call(arguments, kind, input, output, count, dtype, op, root, algorithm, timeout_ms, scale, stream,
            std::move(input_counts), std::move(output_counts), std::move(input_displacements),
            std::move(output_displacements), reduction, uniform, checksum);
  Communicator& communicator = *self;
  Work work = value_or_raise(unlocked([&] { return communicator.start(arguments.call, arguments.options); }));
  return PyWork({self.get()}, std::move(work));
}

void send(const PyCommunicator& self, std::uintptr_t address, std::size_t count, int dtype, std::int32_t peer,
          std::int64_t timeout_ms, std::optional<std::uintptr_t> stream) {
  const DataType type = data_type(dtype);
  const CallOptions options = call_options(timeout_ms, stream);
  Communicator& communicator = *self;
  wait_for(self.one(), [&] { return communicator.send(read_address(address), count, type, peer, options); });
}

void receive(const PyCommunicator& self, std::uintptr_t address, std::size_t count, int dtype, std::int32_t peer,
             std::int64_t timeout_ms, std::optional<std::uintptr_t> stream) {
  const DataType type = data_type(dtype);
  const CallOptions options = call_options(timeout_ms, stream);
  Communicator& communicator = *self;
  wait_for(self.one(), [&] { return communicator.receive(write_address(address), count, type, peer, options); });
}

std::int32_t next_sender(const PyCommunicator& self, std::int64_t timeout_ms) {
  const CallOptions options = call_options(timeout_ms, std::nullopt);
  Communicator& communicator = *self;
  std::int32_t sender = -1;
  wait_for(self.one(), [&]() -> Status {
    const Result<std::int32_t> found = communicator.next_sender(options);
    if (!found) return found.error();
    sender = *found;
    return {};
  });
  return sender;
}

PyWork start_transfer(const PyCommunicator& self, bool sends, std::uintptr_t address, std::size_t count, int dtype,
                      std::int32_t peer, std::int64_t timeout_ms, std::optional<std::uintptr_t> stream) {
  const DataType type = data_type(dtype);
  const CallOptions options = call_options(timeout_ms, stream);
  Communicator& communicator = *self;
  Work work = value_or_raise(unlocked([&]() -> Result<Work> {
    return sends ? tutti::start_send(communicator, read_address(address), count, type, peer, options)
                 : tutti::start_receive(communicator, write_address(address), count, type, peer, options);
  }));
  return PyWork({self.get()}, std::move(work));
}

PyWork start_send(const PyCommunicator& self, std::uintptr_t address, std::size_t count, int dtype, std::int32_t peer,
                  std::int64_t timeout_ms, std::optional<std::uintptr_t> stream) {
  return start_transfer(self, true, address, count, dtype, peer, timeout_ms, stream);
}

PyWork start_receive(const PyCommunicator& self, std::uintptr_t address, std::size_t count, int dtype,
                     std::int32_t peer, std::int64_t timeout_ms, std::optional<std::uintptr_t> stream) {
  return start_transfer(self, false, address, count, dtype, peer, timeout_ms, stream);
}

void barrier(const PyCommunicator& self, std::int64_t timeout_ms) {
  CallOptions options;
  options.timeout = Milliseconds(timeout_ms);
  Communicator& communicator = *self;
  wait_for(self.one(), [&] { return communicator.barrier(options); });
}

nb::object split(const PyCommunicator& self, std::int32_t colour, std::int32_t key) {
  Communicator& communicator = *self;
  return communicator_or_none(wait_for(self.one(), [&] { return communicator.split(colour, key); }));
}

nb::object duplicate(const PyCommunicator& self) {
  Communicator& communicator = *self;
  return communicator_or_none(wait_for(self.one(), [&] { return communicator.duplicate(); }));
}

nb::object shrink(const PyCommunicator& self, std::optional<std::vector<std::int32_t>> excluded) {
  Communicator& communicator = *self;
  return communicator_or_none(
      value_or_raise(unlocked([&] { return excluded ? communicator.shrink(*excluded) : communicator.shrink(); })));
}

nb::object grow(const PyCommunicator& self, std::int32_t size, std::optional<nb::bytes> unique_id) {
  const std::optional<UniqueId> id = unique_id_of(unique_id);
  Communicator& communicator = *self;
  return communicator_or_none(wait_for(self.one(), [&] { return communicator.grow(size, id); }));
}

Agreement agree(const PyCommunicator& self, std::int64_t value, std::int64_t timeout_ms) {
  Communicator& communicator = *self;
  const AgreeOptions options{.value = value, .timeout = Milliseconds(timeout_ms)};
  return value_or_raise(unlocked([&] { return communicator.agree(options); }));
}

// The Python form of a function of Communicator that has no arguments and returns a Status.
template <Status (Communicator::*Function)()>
void plain(const PyCommunicator& self) {
  Communicator& communicator = *self;
  wait_for(self.one(), [&] { return (communicator.*Function)(); });
}

void abort(const PyCommunicator& self) {
  Communicator& communicator = *self;
  unlocked([&] { communicator.abort(); });
}

nb::object allocate(const PyCommunicator& self, std::size_t bytes) {
  Communicator& communicator = *self;
  return new_memory(self.get(), value_or_raise(unlocked([&] { return communicator.allocate(bytes); })));
}

nb::object register_memory(const PyCommunicator& self, std::uintptr_t address, std::size_t bytes) {
  Communicator& communicator = *self;
  return new_memory(
      self.get(),
      value_or_raise(unlocked([&] { return communicator.register_memory(write_address(address), bytes); })));
}

std::uint64_t device_memory_use(const PyCommunicator& self) { return (*self).device_memory_use(); }

std::optional<double> predicted_us(const PyCommunicator& self, int kind, std::size_t count, int dtype, int algorithm) {
  CallArguments arguments;
  read_call(arguments, kind, 0, 0, count, dtype, 0, 0, algorithm, 0, nb::none(), {}, {}, {}, {}, {}, 0, false, false);
  const Communicator& communicator = *self;
  return unlocked([&] {
    return communicator.predicted_us(arguments.call.kind, count, arguments.call.type, arguments.options.algorithm);
  });
}

int auto_algorithm(const PyCommunicator& self, int kind, std::size_t count, int dtype) {
  CallArguments arguments;
  read_call(arguments, kind, 0, 0, count, dtype, 0, 0, 0, 0, nb::none(), {}, {}, {}, {}, {}, 0, false, false);
  const Communicator& communicator = *self;
  const Algorithm chosen =
      unlocked([&] { return communicator.auto_algorithm(arguments.call.kind, count, arguments.call.type); });
  return static_cast<int>(chosen);
}

nb::object new_unique_id(std::string interface, std::uint16_t first_port, std::uint16_t last_port,
                         std::int64_t timeout_ms, std::string job_key_file) {
  const UniqueIdOptions options{std::move(interface), first_port, last_port, Milliseconds(timeout_ms),
                                std::move(job_key_file)};
  const UniqueId id = value_or_raise(unlocked([&] { return UniqueId::create(options); }));
  return nb::bytes(id.bytes.data(), id.bytes.size());
}

nb::object unique_id_from_text(const std::string& text) {
  const UniqueId id = value_or_raise(UniqueId::from_text(text));
  return nb::bytes(id.bytes.data(), id.bytes.size());
}

std::string unique_id_to_text(nb::bytes bytes) { return unique_id_of(std::move(bytes))->to_text(); }

using Class = nb::class_<PyCommunicator>;

void add_creation(Class& type) {
  using nb::arg;
  type.def_static("create", &create, nb::kw_only(), arg("rank") = -1, arg("size") = -1, arg("root") = "",
                  arg("job_id") = "", arg("job_key_file") = "", arg("interface") = "", arg("unique_id") = nb::none(),
                  arg("transport") = "", arg("attach") = "", arg("encrypt") = nb::none(), arg("node_id") = "",
                  arg("device") = nb::none(), arg("device_calls") = "", arg("uniform") = nb::none(),
                  arg("checksum") = nb::none(), arg("setup_timeout_ms") = 0, arg("timeout_ms") = 0);
  type.def_static("create_all", &create_all, arg("size"), nb::kw_only(), arg("transport") = "", arg("nodes") = 1,
                  arg("setup_timeout_ms") = 0, arg("timeout_ms") = 0);
  type.def("split", &split, arg("colour"), arg("key") = 0);
  type.def("duplicate", &duplicate);
  type.def("shrink", &shrink, arg("excluded") = nb::none());
  type.def("grow", &grow, arg("size"), arg("unique_id") = nb::none());
  type.def("agree", &agree, arg("value") = INT64_MAX, arg("timeout_ms") = 0);
}

void add_calls(Class& type) {
  using nb::arg;
  const auto collective = [&](const char* name, auto function) {
    type.def(name, function, arg("kind"), arg("input"), arg("output"), arg("count"), arg("dtype"), arg("op") = 0,
             arg("root") = 0, arg("algorithm") = 0, arg("timeout_ms") = 0, arg("scale") = nb::none(),
             arg("stream") = nb::none(), arg("input_counts") = nb::none(), arg("output_counts") = nb::none(),
             arg("input_displacements") = nb::none(), arg("output_displacements") = nb::none(), arg("reduction") = 0,
             arg("uniform") = false, arg("checksum") = false);
  };
  collective("run", &run);
  collective("start", &start);
  const auto transfer = [&](const char* name, auto function) {
    type.def(name, function, arg("address"), arg("count"), arg("dtype"), arg("peer"), arg("timeout_ms") = 0,
             arg("stream") = nb::none());
  };
  transfer("send", &send);
  transfer("receive", &receive);
  transfer("start_send", &start_send);
  transfer("start_receive", &start_receive);
  type.def("next_sender", &next_sender, arg("timeout_ms") = 0);
  type.def("barrier", &barrier, arg("timeout_ms") = 0);
}

}  // namespace

const std::shared_ptr<Communicator>& PyCommunicator::get() const {
  if (generation_ != process_generation()) {
    raise_invalid(
        "this communicator was made before fork(): only the parent may use it; in the child make one of its own, or "
        "start processes by 'spawn'");
  }
  return communicator_;
}

void add_communicator(nb::module_& module) {
  using nb::arg;
  nb::class_<Agreement>(module, "Agreement")
      .def_ro("survivors", &Agreement::survivors)
      .def_ro("last_operation", &Agreement::last_operation)
      .def_ro("value", &Agreement::value);
  Class type(module, "Communicator", nb::is_weak_referenceable());
  type.def_prop_ro("rank", [](const PyCommunicator& self) { return self.inspect().rank(); });
  type.def_prop_ro("size", [](const PyCommunicator& self) { return self.inspect().size(); });
  type.def_prop_ro("nodes", [](const PyCommunicator& self) { return self.inspect().nodes(); });
  type.def_prop_ro("transport", [](const PyCommunicator& self) { return self.inspect().transport(); });
  type.def_prop_ro("runs_on_devices", [](const PyCommunicator& self) { return self.inspect().runs_on_devices(); });
  add_creation(type);
  add_calls(type);
  add_quick(type);
  type.def("finalize", &plain<&Communicator::finalize>);
  type.def("suspend", &plain<&Communicator::suspend>);
  type.def("resume", &plain<&Communicator::resume>);
  type.def("async_status", &plain<&Communicator::async_status>);
  type.def("abort", &abort);
  type.def("allocate", &allocate, arg("bytes"));
  type.def("register_memory", &register_memory, arg("address"), arg("bytes"));
  type.def("device_memory_use", &device_memory_use);
  type.def("predicted_us", &predicted_us, arg("kind"), arg("count"), arg("dtype"), arg("algorithm") = 0);
  type.def("auto_algorithm", &auto_algorithm, arg("kind"), arg("count"), arg("dtype"));
  module.def("create_unique_id", &new_unique_id, arg("interface") = "", arg("first_port") = 0, arg("last_port") = 0,
             arg("timeout_ms") = 600000, arg("job_key_file") = "");
  module.def("unique_id_from_text", &unique_id_from_text, arg("text"));
  module.def("unique_id_to_text", &unique_id_to_text, arg("unique_id"));
}

}  // namespace tutti::python
