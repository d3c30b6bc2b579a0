// Wires a communicator to the real world: environment, clock, rendezvous, shared memory.
#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <thread>

#include "base/assert.h"
#include "base/config.h"
#include "runtime/bootstrap.h"
#include "runtime/communicator_impl.h"
#include "runtime/rendezvous.h"
#include "topology/host.h"
#include "transports/shm/shm_transport.h"
#include "transports/shm/unix_exchange.h"
#include "tutti/communicator.h"

namespace tutti {
namespace {

using detail::CommunicatorImpl;

SegmentShape segment_shape(const Config& config, std::uint32_t ranks) {
  return {.ranks = ranks, .slots = config.slots, .slot_bytes = config.slot_bytes};
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// Exchanges the addresses of the ranks' Unix sockets. All must be on this machine.
Result<std::vector<std::string>> gather_addresses(Bootstrap& bootstrap, const std::string& own_address) {
  const std::string here = boot_id();
  if (here.empty()) {
    return Error{
        ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
        "/proc/sys/kernel/random/boot_id cannot be read: is /proc mounted, and are descriptors left (ulimit -n)?"};
  }
  auto blobs = bootstrap.all_gather(here + "/" + own_address);
  if (!blobs) return blobs.error();
  std::vector<std::string> addresses;
  for (std::size_t rank = 0; rank < blobs->size(); ++rank) {
    const std::string& blob = (*blobs)[rank];
    if (!blob.starts_with(here + "/")) {
      return Error{
          ErrorCode::kUnsupported, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank),
          fmt::format("rank {} runs on another machine; this version connects the ranks of one machine only", rank)};
    }
    addresses.push_back(blob.substr(here.size() + 1));
  }
  return addresses;
}

Result<std::unique_ptr<ShmTransport>> join(const RendezvousOptions& rendezvous, const SegmentShape& shape,
                                           Clock& clock) {
  const auto rank = static_cast<std::uint32_t>(rendezvous.rank);
  const std::int64_t deadline_ns = clock.now_ns() + rendezvous.timeout_ms * 1'000'000;
  auto segment = Segment::create(shape, rank);
  if (!segment) return segment.error();
  auto listening = UnixExchange::listen(rank, shape.ranks);
  if (!listening) return listening.error();
  const std::shared_ptr<UnixExchange> exchange = std::move(*listening);  // shared by the transport and its windows
  if (shape.ranks > 1) {
    auto bootstrap = tcp_bootstrap(rendezvous);
    if (!bootstrap) return bootstrap.error();
    auto addresses = gather_addresses(**bootstrap, exchange->address());
    if (!addresses) return addresses.error();
    TUTTI_TRY(exchange->connect(*addresses, segment->mapping(), clock, deadline_ns));
    // Nobody leaves set-up before everybody has everybody's memory.
    auto all_ready = (*bootstrap)->all_gather("ready");
    if (!all_ready) return all_ready.error();
  }
  return ShmTransport::create(rank, shape, *segment, exchange);
}

std::chrono::milliseconds call_timeout(const CommunicatorOptions& options, const Config& config) {
  return options.timeout.count() > 0 ? options.timeout : config.timeout;
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::create(const CommunicatorOptions& options) {
  auto config = parse_config(environment_variables());
  if (!config) return config.error();
  auto rendezvous = resolve_rendezvous(options, *config, process_environment());
  if (!rendezvous) return rendezvous.error();
  const auto rank = static_cast<std::uint32_t>(rendezvous->rank);
  const auto ranks = static_cast<std::uint32_t>(rendezvous->size);
  auto clock = std::make_shared<SteadyClock>();
  auto transport = join(*rendezvous, segment_shape(*config, ranks), *clock);
  if (!transport) return transport.error();
  World world{.clock = clock,
              .waiter = std::make_unique<AdaptiveWaiter>(wait_limits(ranks, discover_host().cores)),
              .transport = std::move(*transport),
              .prover = std::make_shared<Prover>(config->verify_plans),
              .log = Log(config->log_level, rendezvous->rank)};
  world.log.write(LogLevel::kInfo, "found by: {}", rendezvous->origin);
  world.log.write(LogLevel::kInfo, "rank {} of {}, transport {}, {} slots of {} bytes", rank, ranks,
                  world.transport->name(), world.transport->slots(), world.transport->slot_bytes());
  return CommunicatorImpl::wrap(
      std::make_unique<CommunicatorImpl>(rank, ranks, std::move(world), call_timeout(options, *config)));
}

Result<std::vector<std::unique_ptr<Communicator>>> Communicator::create_all(std::int32_t size,
                                                                            const CommunicatorOptions& options) {
  auto config = parse_config(environment_variables());
  if (!config) return config.error();
  if (size < 1 || size > 1024) {
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                 fmt::format("size {} is outside 1..1024, what one process holds", size)};
  }
  const auto ranks = static_cast<std::uint32_t>(size);
  const SegmentShape shape = segment_shape(*config, ranks);
  const auto hub = std::make_shared<InProcessHub>();
  std::vector<Segment> segments;
  std::vector<std::shared_ptr<SegmentExchange>> exchanges;  // shared by each rank's transport and its windows
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    auto segment = Segment::create(shape, rank);
    if (!segment) return segment.error();
    exchanges.push_back(std::make_shared<InProcessExchange>(hub, rank));
    exchanges.back()->share(0, segment->mapping());
    segments.push_back(std::move(*segment));
  }
  const auto clock = std::make_shared<SteadyClock>();
  const auto prover = std::make_shared<Prover>(config->verify_plans);
  const WaitLimits limits = wait_limits(ranks, discover_host().cores);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    auto transport = ShmTransport::create(rank, shape, segments[rank], exchanges[rank]);
    if (!transport) return transport.error();
    World world{.clock = clock,
                .waiter = std::make_unique<AdaptiveWaiter>(limits),
                .transport = std::move(*transport),
                .prover = prover,
                .log = Log(config->log_level, static_cast<std::int32_t>(rank))};
    communicators.push_back(CommunicatorImpl::wrap(
        std::make_unique<CommunicatorImpl>(rank, ranks, std::move(world), call_timeout(options, *config))));
  }
  return communicators;
}

}  // namespace tutti
