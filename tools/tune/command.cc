#include "tools/tune/command.h"

#include <errno.h>
#include <fmt/format.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/collective_table.h"
#include "base/config.h"
#include "model/calibration.h"
#include "model/fit.h"
#include "model/fit_choices.h"
#include "tools/common/exit_status.h"
#include "tools/common/file.h"
#include "tools/common/messages.h"
#include "tools/common/system_error.h"
#include "tools/common/validators.h"
#include "tools/run/launch.h"
#include "tools/tune/explain.h"
#include "tools/tune/measure.h"
#include "tools/tune/regret.h"
#include "topology/cluster.h"
#include "topology/host.h"
#include "tutti/communicator.h"

namespace tutti::tool {
namespace {

struct TuneArguments {
  std::vector<std::string> explain{};  // a collective and a size in bytes
  std::string shape{};
  std::string xml{};
  std::string parameters_path{};
  std::uint32_t nodes = 1;
  bool print = false;
  // The option --part: set if `tutti tune` (without --regret) has started this process as a rank. It names the
  // measurement to do.
  std::string part{};
  bool regret = false;
  std::string collectives = "all_reduce";
  std::string sizes = "8,64,512,4K,32K,256K,2M,16M,64M";
  std::string ranks{};
  std::string transports = "shm,tcp";
  std::string memory = "plain";
  std::string csv_path;
  std::int64_t rounds = 5;
  double point_s = 1;
};

// Largest number of ranks in any TunePart. TunePart::kCrowd has twice as many ranks as cores, but not more than this.
constexpr std::uint32_t kMostCrowd = 16;
constexpr std::chrono::milliseconds kPartTimeout{30'000};

int usage_error(const std::string& message) { return report_usage("tune", message); }

int failure(const Error& error) { return report("tune", error); }

// The error for a value `name` of the option `option` that is not the name of a collective with algorithms.
Error wrong_collective(std::string_view option, std::string_view name) {
  std::vector<std::string_view> known;
  for (const CollectiveKind kind : all_collectives()) known.push_back(to_string(kind));
  return wrong_option(option, not_one_of(name, known));
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words;
  while (true) {
    const std::size_t comma = text.find(',');
    words.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return words;
    text.remove_prefix(comma + 1);
  }
}

Result<RegretOptions> regret_options(const TuneArguments& given) {
  const auto wrong = [](std::string message) {
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)};
  };
  RegretOptions options;
  options.kinds.clear();
  for (const std::string& name : split(given.collectives)) {
    const auto collective = parse_perf_collective(name);
    if (!collective || is_exchange(*collective)) return wrong_collective("--collectives", name);
    options.kinds.push_back(collective->kind);
  }
  for (const std::string& text : split(given.sizes)) {
    const auto bytes = parse_size(text);
    if (!bytes) return wrong_option("--sizes", not_a_size(text));
    if (*bytes > std::uint64_t{1} << 32) return wrong(fmt::format("--sizes: {} is more than 4G", text));
    options.sizes.push_back(*bytes);
  }
  constexpr std::array<std::string_view, 2> kMemories = {"plain", "registered"};
  if (given.memory != "plain" && given.memory != "registered") {
    return wrong_option("--memory", not_one_of(given.memory, kMemories));
  }
  options.memory = given.memory == "plain" ? MemoryKind::kPlain : MemoryKind::kRegistered;
  if (given.rounds < 1 || given.rounds > 1000) {
    return wrong_option("--rounds", not_a_number(std::to_string(given.rounds), 1, 1000));
  }
  options.rounds = given.rounds;
  options.point_s = given.point_s;
  return options;
}

// Parses numbers of ranks, "2-8" or "4", and returns the first and the last one. Returns nothing unless the text is
// valid and the numbers are between 2 and 256.
std::optional<std::pair<std::int32_t, std::int32_t>> parse_ranks(const std::string& text) {
  int first = 0;
  int last = 0;
  // Number of characters that sscanf() has parsed. The text is invalid if this is not the length of the text.
  int used = 0;
  const bool range = std::sscanf(text.c_str(), "%d-%d%n", &first, &last, &used) == 2;
  const bool number = !range && std::sscanf(text.c_str(), "%d%n", &first, &used) == 1;
  if (number) last = first;
  const bool whole = (range || number) && static_cast<std::size_t>(used) == text.size();
  if (!whole || first < 2 || last < first || last > 256) return std::nullopt;
  return std::pair(first, last);
}

// Runs as one rank of a job that this command has started. Rank 0 appends its rows to `csv_path`.
int run_regret_rank(const RegretOptions& options, const std::string& csv_path) {
  auto communicator = Communicator::create({});
  if (!communicator) return failure(communicator.error());
  auto config = parse_config(environment_variables());
  const bool tcp = config.ok() && config->transport == TransportPolicy::kTcp;
  auto rows = measure_regret(**communicator, options, tcp ? "tcp" : "shm");
  if (!rows) return failure(rows.error());
  if ((*communicator)->rank() != 0) return kExitSuccess;
  std::ofstream file(csv_path, std::ios::app);
  file << to_csv(*rows);
  return file.flush() ? kExitSuccess : failure(system_error("cannot write the rows", errno));
}

Result<std::vector<std::string>> own_command(const std::vector<std::string>& arguments) {
  std::array<char, PATH_MAX> path = {};
  if (::readlink("/proc/self/exe", path.data(), path.size() - 1) < 0) {
    return system_error("cannot find this program's file", errno);
  }
  std::vector<std::string> command{path.data()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

// A temporary file, which the destructor removes.
class TemporaryFile {
 public:
  TemporaryFile() {
    const int fd = ::mkstemp(path_.data());
    if (fd >= 0) ::close(fd);
    made_ = fd >= 0;
  }
  ~TemporaryFile() {
    if (made_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  bool made() const { return made_; }
  const std::string& path() const { return path_; }
  std::string text() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "tutti-tune-XXXXXX").string();
  bool made_ = false;
};

int run_regret(const TuneArguments& given, const std::vector<std::string>& arguments) {
  auto options = regret_options(given);
  if (!options) return usage_error(options.error().message);
  const auto ranks = parse_ranks(given.ranks.empty() ? "2-8" : given.ranks);
  if (!ranks) {
    return usage_error(
        fmt::format("--ranks: \"{}\" is not a number of ranks from 2 to 256 (8) or a range (2-8)", given.ranks));
  }
  if (process_environment().contains("TUTTI_RANK")) return run_regret_rank(*options, given.csv_path);
  for (const std::string& transport : split(given.transports)) {
    constexpr std::array<std::string_view, 2> kTransports = {"shm", "tcp"};
    if (transport == "shm" || transport == "tcp") continue;
    return failure(wrong_option("--transports", not_one_of(transport, kTransports)));
  }
  const Status writable = given.csv_path.empty() ? Status() : check_writable(given.csv_path);
  if (!writable) return failure(writable.error());
  const TemporaryFile rows_file;
  if (!rows_file.made()) return failure(system_error("cannot make a temporary file", errno));
  std::vector<std::string> extended = arguments;
  extended.insert(extended.end(), {"--csv", rows_file.path()});
  const auto command = own_command(extended);
  if (!command) return failure(command.error());
  for (const std::string& transport : split(given.transports)) {
    ::setenv("TUTTI_TRANSPORT", transport.c_str(), 1);
    for (std::int32_t p = ranks->first; p <= ranks->second; ++p) {
      fmt::print(stderr, "{} ranks, {}\n", p, transport);
      const auto status = launch({.name = "tutti tune", .command = *command, .ranks = p, .prefix = Prefix::kErrors});
      if (!status) return failure(status.error());
      if (*status != 0) return *status;
    }
  }
  auto rows = parse_regret(rows_file.text());
  if (!rows) return failure(rows.error());
  if (!given.csv_path.empty()) {
    if (const Status written = write_file(given.csv_path, to_csv(*rows)); !written) return failure(written.error());
  }
  fmt::print("{}", to_text(regret_of(*rows)));
  return kExitSuccess;
}

// Runs as one rank of a measurement. Rank 0 appends its measurements to `csv_path`.
int run_part(const std::string& name, const std::string& csv_path) {
  const auto* const part =
      std::find_if(std::begin(kTuneParts), std::end(kTuneParts), [&](TunePart one) { return to_string(one) == name; });
  if (part == std::end(kTuneParts)) return usage_error(fmt::format("--part: there is no part \"{}\"", name));
  auto communicator = Communicator::create({});
  if (!communicator) return failure(communicator.error());
  auto measured = measure_part(**communicator, *part);
  if (!measured) return failure(measured.error());
  if ((*communicator)->rank() != 0) return kExitSuccess;
  std::ofstream file(csv_path, std::ios::app);
  file << measurements_csv(*measured);
  return file.flush() ? kExitSuccess : failure(system_error("cannot write the measurements", errno));
}

// Starts `ranks` ranks, which do a part of the measurements. Their rank 0 appends its rows to the file at `csv_path`.
Status run_ranks(TunePart part, std::uint32_t ranks, const std::string& csv_path) {
  ::setenv("TUTTI_TRANSPORT", part == TunePart::kNic ? "tcp" : "shm", 1);
  ::setenv("TUTTI_ATTACH", part == TunePart::kMessages ? "off" : (part == TunePart::kCalls ? "calls" : "auto"), 1);
  auto command = own_command({"tune", "--part", std::string(to_string(part)), "--csv", csv_path});
  if (!command) return command.error();
  const auto status = launch({.name = "tutti tune",
                              .command = *std::move(command),
                              .ranks = static_cast<std::int32_t>(ranks),
                              .timeout = kPartTimeout,
                              .prefix = Prefix::kErrors});
  if (!status) return status.error();
  if (*status == 0) return {};
  return Error{ErrorCode::kSystem, ErrorScope::kCall, -1,
               fmt::format("the ranks that measure \"{}\" ended with status {}", to_string(part), *status)};
}

// Measures the calls from which fit_choices() computes the choices for this number of ranks. If that fails, only
// prints a warning, because the measured costs are useful without the choices.
void run_choices(std::uint32_t ranks, const std::string& csv_path) {
  for (const TunePart part : {TunePart::kMessages, TunePart::kCalls}) {
    const Status done = run_ranks(part, ranks, csv_path);
    if (done.ok()) continue;
    fmt::print(stderr, "tutti tune: {}; some choices for {} ranks may keep their defaults\n", done.error().message,
               ranks);
  }
}

// `cores`: the cores that this process may use; `all_cores`: the same without the CPU limit of its cgroup, which
// communicators do not consider for their choices either.
Result<Parameters> measure_machine(const Config& config, std::uint32_t cores, std::uint32_t all_cores) {
  const TemporaryFile rows;
  if (!rows.made()) return system_error("cannot make a temporary file", errno);
  const auto crowd = std::min<std::uint32_t>(2 * cores, kMostCrowd);
  // Includes more ranks than cores (up to kMostCrowd), because every wait then includes a switch of a core.
  std::vector<std::uint32_t> numbers;
  for (const std::uint32_t ranks : {2u, cores, cores + 1, crowd}) {
    const std::uint32_t number = std::min(ranks, kMostCrowd);
    if (number >= 2 && (numbers.empty() || number > numbers.back())) numbers.push_back(number);
  }
  TUTTI_TRY(run_ranks(TunePart::kMemory, 2, rows.path()));
  // The choices are measured in three passes, with other measurements between, and the shortest times count, because a
  // virtual machine can be slow for seconds.
  for (const TunePart between : {TunePart::kNic, TunePart::kCrowd, TunePart::kCrowd}) {
    TUTTI_TRY(run_ranks(between, between == TunePart::kNic ? 2 : crowd, rows.path()));
    for (const std::uint32_t ranks : numbers) run_choices(ranks, rows.path());
  }
  auto measured = parse_measurements(rows.text());
  if (!measured) return measured.error();
  measured = shortest_of(*measured);
  auto parameters = fit_parameters(*measured, cores, config.slot_bytes_or(kSlotBytes));
  if (parameters) parameters->choices = fit_choices(*measured, numbers, all_cores);
  return parameters;
}

std::string summary(const Parameters& p) {
  const MessageCost& memory = p.cost(Level::kMemory, Protocol::kSimple);
  const MessageCost& nic = p.cost(Level::kNic, Protocol::kSimple);
  const MessageCost& window = p.cost(Level::kMemory, Protocol::kWindow);
  std::string text = fmt::format(
      "a message by memory   post {:.2f} us, latency {:.2f} us, {:.1f} GB/s\n"
      "a message by TCP      post {:.2f} us, latency {:.2f} us, {:.1f} GB/s (loopback)\n"
      "a mailbox             latency {:.2f} us\n"
      "each other's memory   {:.1f} GB/s, by system calls {:.1f} GB/s\n"
      "one rank              call {:.2f} us, sums {:.1f} GB/s, copies {:.1f} GB/s\n"
      "cores                 {}, {:.2f} us from rank to rank\n",
      memory.post_us, memory.latency_us, memory.gbytes_per_s, nic.post_us, nic.latency_us, nic.gbytes_per_s,
      p.cost(Level::kMemory, Protocol::kLl).latency_us, window.gbytes_per_s, p.attach_gbytes_per_s, p.launch_us,
      p.reduce_gbytes_per_s, p.copy_gbytes_per_s, p.cores, p.handover_us);
  for (const RankChoices& one : p.choices)
    text += fmt::format("{:<4} ranks            {}\n", one.ranks, to_string(one.choices));
  return text;
}

// Warns on standard error if the measured times vary so much (noise_of()) that other work must have disturbed them.
void warn_of_noise(const Parameters& parameters) {
  const double noise = noise_of(parameters.measured);
  if (noise < kMuchNoise) return;
  fmt::print(
      stderr,
      "tutti tune: the machine was busy: in at least half of the measurements of costs, the slowest sample took {:.1f} "
      "times as long as the median sample, or longer. These costs may be wrong. Measure again when nothing else "
      "runs.\n",
      noise);
}

// Checks that the folder of `tune_file` (TUTTI_TUNE_FILE) exists. The command does not create a folder that the user
// has named, because the name may contain a typing error. Empty: the user has named no file.
Status check_folder(const std::string& tune_file) {
  const std::filesystem::path folder = std::filesystem::path(tune_file).parent_path();
  std::error_code unknown;
  if (folder.empty() || std::filesystem::is_directory(folder, unknown)) return {};
  return Error{ErrorCode::kConfig, ErrorScope::kCall, -1,
               fmt::format("TUTTI_TUNE_FILE={}: there is no folder {}: make it, or name another file", tune_file,
                           folder.string())};
}

// Takes the lock. If a job holds it, tries again for five seconds, because the kernel has no wait with a limit. Returns
// nothing if the lock cannot be taken; the command then measures anyway, because the user has asked for it.
std::optional<CalibrationLock> wait_for_lock(const std::string& path) {
  constexpr int kTries = 50;
  for (int i = 0; i < kTries; ++i) {
    auto lock = CalibrationLock::take(path);
    if (lock) return *std::move(lock);
    if (lock.error().code != ErrorCode::kTimeout) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  fmt::print(stderr, "tutti tune: something else measures this machine, too, so the result may be inaccurate\n");
  return std::nullopt;
}

int run_measure(const TuneArguments& given) {
  auto config = parse_config(environment_variables());
  if (!config) return failure(config.error());
  const std::string path = calibration_path(config->tune_file, process_environment());
  if (path.empty() && !given.print) {
    return usage_error("there is no place for the file: set HOME, XDG_CACHE_HOME or TUTTI_TUNE_FILE, or give --print");
  }
  if (const Status there = check_folder(config->tune_file); !there) return usage_error(there.error().message);
  // The ranks need no tuning, because every measured call between several ranks names its algorithm.
  ::unsetenv("TUTTI_TUNE");
  ::unsetenv("TUTTI_TUNE_FILE");
  ::setenv("TUTTI_MEASURE", "0", 1);
  // These settings of the user would change the results, which must show the properties of the machine.
  for (const char* name : {"TUTTI_SLOTS", "TUTTI_SLOT_BYTES", "TUTTI_CHECKSUM", "TUTTI_UNIFORM", "TUTTI_RECORD"})
    ::unsetenv(name);
  // Jobs do not measure if the user names a file, and --print changes no file, so no lock is needed in these two cases.
  const bool stores = !given.print && config->tune_file.empty();
  const auto lock = stores ? wait_for_lock(path) : std::optional<CalibrationLock>();
  const HostTopology host = discover_host();
  auto parameters = measure_machine(*config, cores_of({host.cpus}, host.cpu_limit), cores_of({host.cpus}, 0));
  if (!parameters) return failure(parameters.error());
  parameters->name = fmt::format("{} cores", parameters->cores);
  parameters->source = fmt::format("tutti tune, {}", utc_now());
  parameters->hardware = hardware_hash();
  warn_of_noise(*parameters);
  if (given.print) {
    fmt::print("{}", to_json(*parameters));
    return kExitSuccess;
  }
  if (const Status stored = store_calibration(path, *parameters); !stored) return failure(stored.error());
  fmt::print("{}\nWritten to {}\n", summary(*parameters), path);
  return kExitSuccess;
}

int run_explain(const TuneArguments& given) {
  const auto kind = parse_collective(given.explain[0]);
  const auto bytes = parse_size(given.explain[1]);
  if (!kind || !has_plan(*kind)) {
    return failure(wrong_collective("--explain", given.explain[0]));
  }
  if (!bytes) return failure(wrong_option("--explain", not_a_size(given.explain[1])));
  ExplainOptions options{.kind = *kind,
                         .bytes = *bytes,
                         .machines = given.nodes,
                         .tcp = given.transports == "tcp",
                         .shape = given.shape,
                         .xml_path = given.xml,
                         .parameters_path = given.parameters_path};
  if (!given.ranks.empty()) {
    const auto ranks = parse_size(given.ranks);
    if (!ranks || *ranks < 2 || *ranks > 65535) {
      return failure(wrong_option("--ranks", not_a_number(given.ranks, 2, 65535)));
    }
    options.ranks = static_cast<std::uint32_t>(*ranks);
  }
  const auto text = explain(options);
  if (!text) return failure(text.error());
  fmt::print("{}", *text);
  return kExitSuccess;
}

int run_tune(const TuneArguments& given, const std::vector<std::string>& arguments) {
  if (given.regret) return run_regret(given, arguments);
  if (!given.explain.empty()) return run_explain(given);
  if (!given.part.empty()) return run_part(given.part, given.csv_path);
  return run_measure(given);
}

// Returns an error message if the user has given an option that belongs to another task than the selected one (measure,
// --explain or --regret), because the option would have no effect, if options exclude each other, or if --transports is
// not valid for --explain. Otherwise returns nothing.
std::optional<std::string> contradiction(const CLI::App& command, const TuneArguments& given) {
  constexpr std::pair<std::string_view, std::string_view> kOptions[] = {
      {"--print", "measure"},      {"--shape", "explain"},      {"--xml", "explain"},     {"--nodes", "explain"},
      {"--ranks", "both"},         {"--parameters", "explain"}, {"--transports", "both"}, {"--sizes", "regret"},
      {"--collectives", "regret"}, {"--memory", "regret"},      {"--rounds", "regret"},   {"--point-s", "regret"},
      {"--csv", "regret"}};
  if (!given.part.empty()) return std::nullopt;
  const bool explain = !given.explain.empty();
  if (explain && given.regret) return "--explain and --regret are two tasks: give one of them";
  const std::string_view task = explain ? "explain" : (given.regret ? "regret" : "measure");
  for (const auto& [option, its] : kOptions) {
    if (command.count(std::string(option)) == 0 || its == task || (its == "both" && task != "measure")) continue;
    if (its == "measure") return fmt::format("{} is of measuring: leave it out, or leave out --{}", option, task);
    const std::string wants = its == "both" ? "--explain or --regret" : fmt::format("--{}", its);
    return fmt::format("{} is of {}: {}", option, wants,
                       task == "measure" ? fmt::format("give {} too", wants) : "leave it out");
  }
  if (!given.shape.empty() && !given.xml.empty()) return "--shape and --xml are two machines: leave one of them out";
  if (explain && !(given.shape.empty() && given.xml.empty()) && command.count("--transports") > 0)
    return "--transports is of this machine, and that of --shape or --xml has its own network: leave one of them out";
  if (explain && command.count("--transports") > 0 && given.transports != "tcp" && given.transports != "shm")
    return fmt::format("--transports: \"{}\" is not one of shm, tcp", given.transports);
  return std::nullopt;
}

void add_options(CLI::App& command, TuneArguments& given) {
  command
      .add_option("--explain", given.explain,
                  "COLLECTIVE BYTES: show the tuner's predictions, the selected algorithm, and the reason")
      ->expected(2);
  command
      .add_option("--shape", given.shape, "With --explain: a ready-made machine, as in tutti sim, instead of this one")
      ->check(name_in(shape_names()));
  command.add_option("--xml", given.xml, "With --explain: the machine in this file, as in tutti sim");
  command.add_option("--nodes", given.nodes, "With --explain: number of machines")
      ->capture_default_str()
      ->check(number_in(1u, kMaxMachines));
  command.add_option("--parameters", given.parameters_path,
                     "With --explain: a file of costs instead of the measured ones");
  command.add_flag("--print", given.print, "Print the measured costs as JSON, and do not store them");
  // Not shown in the help text: the command itself passes it to the ranks that it starts.
  command.add_option("--part", given.part)->group("");
  command.add_flag("--regret", given.regret, "Run every algorithm and compare the library's choice with the best");
  command.add_option("--collectives", given.collectives, "With --regret: list, separated by commas")
      ->capture_default_str();
  command.add_option("--sizes", given.sizes, "With --regret: message lengths, separated by commas")
      ->capture_default_str();
  command.add_option("--ranks", given.ranks,
                     "With --regret: number or range (default 2-8); with --explain: number (default 2)");
  command
      .add_option("--transports", given.transports,
                  "With --regret: shm, tcp or both; with --explain: tcp instead of shared memory")
      ->capture_default_str();
  command.add_option("--memory", given.memory, "With --regret: plain or registered")->capture_default_str();
  command
      .add_option("--rounds", given.rounds,
                  "With --regret: largest number of rounds; each round measures every algorithm")
      ->capture_default_str();
  command.add_option("--point-s", given.point_s, "With --regret: approximate seconds for each point")
      ->capture_default_str();
  command.add_option("--csv", given.csv_path, "With --regret: write all rows to this file")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

}  // namespace

void add_tune_command(CLI::App& app, std::vector<std::string> arguments, int& exit_status) {
  auto given = std::make_shared<TuneArguments>();  // shared with the callback, which outlives this function
  CLI::App* command =
      app.add_subcommand("tune", "Measure this machine, and explain and check how the tuner selects algorithms");
  command->footer(
      "Without an option it measures, in a few seconds, and stores the result in the file that communicators read.\n"
      "Exit status: 0; 1 if something failed; 2 if the command line or a TUTTI_* variable is invalid.");
  add_options(*command, *given);
  command->callback([given, command, arguments = std::move(arguments), &exit_status] {
    const auto wrong = contradiction(*command, *given);
    exit_status = wrong ? usage_error(*wrong) : run_tune(*given, arguments);
  });
}

}  // namespace tutti::tool
