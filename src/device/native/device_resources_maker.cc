// make_device_resources(): the ranks exchange descriptions of their GPUs, agree on how to run calls, and open each
// other's memory.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "device/native/device_offer.h"
#include "device/native/device_resources.h"
#include "device/native/launch_agreement.h"
#include "device/native/link_check.h"
#include "device/process_registry.h"
#include "engine/arguments.h"
#include "kernels/device/transfer_call.h"

namespace tutti::detail {
namespace {

constexpr std::uint64_t kMostArenaBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMostTransferBytes = std::uint64_t{32} << 20;  // the most bytes of an arena for transfer slots
constexpr std::string_view kHasBlocks = "+";
constexpr std::string_view kHasNoBlocks = "-";
// How long the check of the links waits for other ranks, but at most half of the timeout of set-up.
constexpr std::chrono::milliseconds kLinkLimit{10'000};
// A rank whose calls cannot, or shall not, run on a GPU contributes one of these marks to the first round, and the
// reason. kAskedFor: a setting of the user is the reason, or a general rule of Tutti, so no warning is needed.
// kUnexpected: there is another reason, so rank 0 warns.
constexpr std::string_view kAskedFor = "-";
constexpr std::string_view kUnexpected = "!-";
constexpr std::size_t kMostReason = 1024;  // the longest reason that is sent, because the data of a round is limited
// In the third round a rank contributes kConnected if it has opened the memory of all others, and in the last round if
// its check of the links has passed or is not needed. Otherwise it contributes kNotConnected and the reason, if any.
constexpr std::string_view kConnected = "1";
constexpr std::string_view kNotConnected = "0";
// Replaces kConnected, with which it begins, in the last round if LL128 was asked for and is not known to be safe.
constexpr std::string_view kWithoutLl128 = "1-";

// How ranks of other processes reach the memory of a rank.
struct RemoteMemory {
  cuda::CUipcMemHandle arena{};
  std::uint32_t flags = 0;  // number with which the flags of the rank are shared in the members' exchange
};

}  // namespace

// Makes the DeviceResources of one rank, in kDeviceRounds rounds of `gather`: the ranks exchange offers, then
// handles of their arenas, then whether they have opened all arenas, then whether data arrives there.
class DeviceResourcesMaker {
 public:
  DeviceResourcesMaker(const JobContext& job_context, const std::vector<std::uint32_t>& members, std::uint32_t rank,
                       std::uint64_t communicator, const Environment& resources, const Gather& gather)
      : job_context_(job_context),
        members_(members),
        ranks_(static_cast<std::uint32_t>(members.size())),
        rank_(rank),
        communicator_(communicator),
        host_environment_(resources),
        gather_(gather),
        log_(job_context.config.log_level, static_cast<std::int32_t>(rank)) {}

  Result<std::unique_ptr<DeviceResources>> make() {
    auto blobs = round(introduce());
    if (!blobs) return skip(3, blobs.error());
    if (const Status alike = agree(*blobs); !alike) return skip(3, alike.error());
    Result<std::string> allocated = std::string();
    if (agreed_) {
      const Status made = allocate();
      if (!made) allocated = made.error();
      if (made) allocated = std::string(has_blocks_ ? kHasBlocks : kHasNoBlocks) + handle_;
    }
    auto handles = round(allocated);
    if (!handles) return skip(2, handles.error());
    Result<std::string> reached = std::string(kNotConnected);
    if (agreed_) reached = try_to_connect(*handles);
    auto all = round(reached);
    if (!all) {
      if (all.error().rank >= 0) has_nothing_open(static_cast<std::uint32_t>(all.error().rank));
      return skip(1, all.error());
    }
    const bool connected = agreed_ && all_connected(*all);
    for (std::uint32_t r = 0; r < ranks_ && agreed_; ++r) {
      if ((*all)[r] != kConnected) has_nothing_open(r);
    }
    Result<std::string> links = std::string(kNotConnected);
    if (connected) links = try_links();
    auto checked = round(links);
    if (!checked) return checked.error();
    if (!connected || !all_connected(*checked)) return std::unique_ptr<DeviceResources>();
    if (std::ranges::find(*checked, kWithoutLl128) != checked->end()) replace_ll128();
    log_.write(LogLevel::kInfo, "calls on device memory run on the GPUs: device {}, {} blocks of {} threads at most",
               job_context_.device->number(), resources_->settings_.blocks, resources_->settings_.threads);
    return std::move(resources_);
  }

 private:
  // Logs on rank 0, for all ranks, why the host carries out calls on device memory. `level`: kWarn if the user cannot
  // expect it, because these calls are much slower. `rank`: the rank with this reason, or -1.
  void log_fallback(LogLevel level, std::int64_t rank, std::string_view reason) const {
    if (rank_ != 0) return;
    constexpr std::string_view kEnd = "; TUTTI_DEVICE_CALLS=staged ends this warning";
    const std::string_view end = level == LogLevel::kWarn ? kEnd : "";
    const std::string whose = rank < 0 ? "" : fmt::format("rank {}: ", rank);
    log_.write(level, "calls on device memory are carried out by the host: {}{}{}", whose, reason, end);
  }

  static std::string_view after(std::string_view mark, std::string_view contribution) {
    return contribution.substr(std::min(mark.size(), contribution.size()));
  }

  // Makes the contribution to the third round: kConnected if connect() succeeds; otherwise kNotConnected and the
  // reason, and then no peer's arena stays open. Returns an error only after an exception.
  Result<std::string> try_to_connect(const std::vector<std::string>& handles) {
    try {
      const Status connected = connect(handles);
      if (connected.ok()) return std::string(kConnected);
      resources_->opened_.clear();
      return fmt::format("{}{:.{}}", kNotConnected, connected.error().message, kMostReason);
    } catch (...) {
      resources_->opened_.clear();
      return error_of_exception(ErrorScope::kCommunicator, static_cast<std::int32_t>(rank_), "reaching the other GPUs");
    }
  }

  // Whether all contributions to a round begin with kConnected. If not, logs the reason of the first that does not.
  bool all_connected(const std::vector<std::string>& contributions) const {
    for (std::uint32_t r = 0; r < ranks_; ++r) {
      if (contributions[r].starts_with(kConnected)) continue;
      log_fallback(LogLevel::kWarn, r, after(kNotConnected, contributions[r]));
      return false;
    }
    return true;
  }

  // Makes the contribution to the last round: whether writes of the other GPUs arrive here. A single rank has nothing
  // to check. Ranks without Settings::transfers are not checked, because they do not use the kernel of the check.
  Result<std::string> try_links() {
    try {
      const bool wants_ll128 = resources_->settings_.protocol == DeviceProtocol::kLl128;
      const std::string joined(wants_ll128 && !lines_arrive_whole(offers_) ? kWithoutLl128 : kConnected);
      if (!resources_->settings_.transfers || !resources_->link_check_) return joined;
      auto scope = cuda::ContextScope::enter(job_context_.device->driver(), job_context_.device->context());
      if (!scope) return scope.error();
      const Status arrives =
          resources_->link_check_->run({.kernel = resources_->transfer_kernel(),
                                        .links = resources_->transfer_links(),
                                        .status = resources_->status_on_device(),
                                        .here = &resources_->status(),
                                        .blocks = resources_->settings_.kept_blocks,
                                        .threads = resources_->settings_.threads,
                                        .rank = rank_,
                                        .limit = std::min(kLinkLimit, job_context_.config.setup_timeout / 2)});
      if (arrives.ok()) return joined;
      return fmt::format("{}{:.{}}", kNotConnected, arrives.error().message, kMostReason);
    } catch (...) {
      return error_of_exception(ErrorScope::kCommunicator, static_cast<std::int32_t>(rank_), "checking the links");
    }
  }

  void replace_ll128() {
    resources_->settings_.protocol = DeviceProtocol::kSimple;
    if (rank_ != 0) return;
    log_.write(
        LogLevel::kWarn,
        "TUTTI_DEVICE_PROTOCOL=ll128 needs NVLink between all GPUs, which NVML does not confirm: the protocol is "
        "simple instead");
  }

  // Records that `peer` does not have the memory of this rank open. When the resources of this rank are destroyed, they
  // wait until every peer in remote_ranks_ reports that it has closed this memory. `peer` will not report that, so it
  // is removed from remote_ranks_.
  void has_nothing_open(std::uint32_t peer) {
    if (resources_ == nullptr) return;
    std::erase_if(resources_->remote_ranks_,
                  [peer](const DeviceResources::RemoteRank& one) { return one.rank == peer; });
  }

  Result<std::vector<std::string>> round(const Result<std::string>& result) { return gather_or_fail(gather_, result); }

  // Takes part in the remaining `rounds` rounds with a failure, and returns `error`. Necessary because a round can
  // include ranks of other communicators that are made at the same time, and these expect this rank in every round.
  Error skip(int rounds, Error error) {
    for (int i = 0; i < rounds; ++i) static_cast<void>(gather_("!"));
    return error;
  }

  // Why the host shall carry out the calls, although that is slower: because of the user's settings, or by Tutti's
  // design. Empty if the GPUs shall do it.
  std::string_view reason_for_host() const {
    const Config& config = job_context_.config;
    if (job_context_.device == nullptr) return "it has no GPU";
    if (config.device_calls == DevicePolicy::kStaged) return "TUTTI_DEVICE_CALLS=staged";
    if (config.checksum) return "TUTTI_CHECKSUM=1: only the host adds checksums to messages";
    if (!host_environment_.nodes.empty()) return "the ranks are on several machines, between which GPUs do not send";
    return ranks_ > kMostDeviceRanks ? "there are more ranks than GPUs can connect" : "";
  }

  // Makes the contribution to the first round: a DeviceOffer, or a mark and the reason why the calls of this rank
  // cannot, or shall not, run on a GPU.
  std::string introduce() {
    const Config& config = job_context_.config;
    if (const std::string_view reason = reason_for_host(); !reason.empty())
      return fmt::format("{}{}", kAskedFor, reason);
    auto code = job_context_.device->code(config.device_threads);
    if (!code) return fmt::format("{}{:.{}}", kUnexpected, code.error().message, kMostReason);
    const std::optional<std::uint64_t> nonce = process_nonce();
    if (!nonce) {
      return fmt::format("{}{}", kUnexpected,
                         "the system gives no random numbers, so ranks cannot tell whether they share a process");
    }
    code_ = *code;
    return pack(DeviceOffer{.uuid = job_context_.device->uuid(),
                            .process = *nonce,
                            .context = reinterpret_cast<std::uint64_t>(job_context_.device->context()),
                            .blocks_at_once = code_.blocks_at_once,
                            .left = BlockBudget::left(job_context_.device->uuid(), code_.blocks_at_once),
                            .blocks = config.device_blocks,
                            .slot_bytes = config.device_slot_bytes,
                            .protocol = static_cast<std::uint32_t>(config.device_protocol),
                            .threads = config.device_threads,
                            .copies = config.device_copies});
  }

  // Whether the calls of some rank cannot, or shall not, run on a GPU. Logs the first reason. `blobs`: as in agree().
  bool falls_back(const std::vector<std::string>& blobs) const {
    for (std::uint32_t r = 0; r < ranks_; ++r) {
      const bool asked = blobs[r].starts_with(kAskedFor);
      if (!asked && !blobs[r].starts_with(kUnexpected)) continue;
      log_fallback(asked ? LogLevel::kInfo : LogLevel::kWarn, r, after(asked ? kAskedFor : kUnexpected, blobs[r]));
      return true;
    }
    return false;
  }

  // Decides from the offers of all ranks whether calls run on the GPUs (agreed_), how, and with how many blocks.
  // All ranks come to the same result, because they have the same offers. Errors: an offer is malformed, or ranks
  // have different settings.
  Status agree(const std::vector<std::string>& blobs) {
    agreed_ = false;
    if (falls_back(blobs)) return {};
    for (std::uint32_t r = 0; r < ranks_; ++r) {
      const auto offer = unpack<DeviceOffer>(blobs[r]);
      if (!offer) {
        return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(r),
                     fmt::format("rank {} sent a malformed description of its GPU", r)};
      }
      offers_.push_back(*offer);
      const DeviceOffer& first = offers_.front();
      if (offer->threads != first.threads || offer->blocks != first.blocks || offer->slot_bytes != first.slot_bytes ||
          offer->protocol != first.protocol || offer->copies != first.copies) {
        return Error{ErrorCode::kMismatch, ErrorScope::kCommunicator, static_cast<std::int32_t>(r),
                     fmt::format("rank {} has other TUTTI_DEVICE_* settings than rank 0: give all ranks the same", r)};
      }
    }
    how_ = agree_on_launches(offers_);
    agreed_ = how_.blocks > 0;
    if (!agreed_) log_fallback(LogLevel::kWarn, -1, how_.reason);
    return {};
  }

  // The work before the second round: allocates this rank's arena and flags, takes blocks from the budget, and
  // shares its memory with ranks of other processes (handle_).
  Status allocate() {
    const cuda::Driver& driver = job_context_.device->driver();
    auto scope = cuda::ContextScope::enter(driver, job_context_.device->context());
    if (!scope) return scope.error();
    const std::uint32_t slot_bytes = job_context_.config.device_slot_bytes;
    const DeviceArena arena(ranks_, DeviceArena::choose_connections(ranks_, how_.blocks, slot_bytes, kMostArenaBytes),
                            transfer_connections());
    // Not make_unique, because the constructor is private.
    resources_.reset(new DeviceResources(rank_, job_context_.device, arena, log_));
    resources_->code_ = code_;
    resources_->exchange_ = job_context_.exchange;
    resources_->settings_.blocks = how_.blocks;
    resources_->settings_.kept_blocks = how_.kept_blocks;
    resources_->settings_.threads = job_context_.config.device_threads;
    resources_->settings_.protocol = job_context_.config.device_protocol;
    resources_->settings_.in_rounds = how_.in_rounds;
    resources_->settings_.transfers = arena.transfer_connections().count > 0;
    auto memory = cuda::DeviceMemory::allocate(driver, arena.bytes());
    if (!memory) return too_little(memory.error(), arena.bytes());
    auto pinned = cuda::PinnedMemory::allocate(driver, sizeof(device::RankStatus));
    if (!pinned) return pinned.error();
    // placement new: the status lies in the pinned memory
    resources_->status_ = new (pinned->bytes().data()) device::RankStatus;
    resources_->pinned_.emplace(std::move(*pinned));
    TUTTI_TRY(zero(*memory));
    if (resources_->settings_.transfers && ranks_ > 1) {
      auto check = LinkCheck::make(driver, ranks_, arena.transfer_connections().count);
      if (!check) return check.error();
      resources_->link_check_.emplace(std::move(*check));
    }
    resources_->own_arena_ = std::make_shared<cuda::DeviceMemory>(std::move(*memory));
    resources_->process_ = shared_in_process<DeviceResources::Process>(communicator_);
    auto flags = PeerFlags::create(driver);
    if (!flags) return flags.error();
    resources_->flags_.resize(ranks_);
    resources_->flags_[rank_] = std::move(*flags);
    resources_->process_->give(
        rank_, {.device = job_context_.device, .arena = resources_->own_arena_, .flags = resources_->flags_[rank_]});
    if (how_.launches) {
      const std::uint32_t blocks = how_.kept_blocks * (how_.launches == BlockBudget::Launches::kEnd ? ranks_ : 1);
      has_blocks_ =
          resources_->block_budget_.take(job_context_.device->uuid(), code_.blocks_at_once, *how_.launches, blocks);
    }
    bool alone = true;
    for (const DeviceOffer& other : offers_) {
      alone &= other.same_process(offers_[rank_]);
      resources_->settings_.one_device &= other.same_device(offers_[rank_]);
    }
    if (alone) return {};
    auto handle = resources_->own_arena_->share();
    if (!handle) return handle.error();
    // Shared by the offer and the waits in open_flags().
    exchange_ = std::make_shared<SubExchange>(job_context_.exchange, members_);
    resources_->flags_offer_.emplace(exchange_, resources_->flags_[rank_]->mapping());
    handle_ = pack(RemoteMemory{.arena = *handle, .flags = resources_->flags_offer_->id()});
    return {};
  }

  // The connections for sends and receives; none if the host is known to carry these out. A rank makes its sends and
  // receives when it wants, so their kernels can neither share a launch with those of other ranks nor run in rounds.
  DeviceArena::Connections transfer_connections() const {
    if (how_.shared || how_.in_rounds) return {.count = 0};
    const std::uint32_t threads = std::min(job_context_.config.device_threads, device::kShortThreads);
    return DeviceArena::choose_transfer_connections(ranks_, how_.blocks, how_.kept_blocks * threads,
                                                    job_context_.config.device_slot_bytes, kMostTransferBytes);
  }

  Error too_little(const Error& error, std::uint64_t bytes) const {
    return {error.code, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank_),
            fmt::format("{}; rank {} needs {} MiB of device {} for its connections: free some, give a smaller "
                        "TUTTI_DEVICE_SLOT_BYTES or fewer TUTTI_DEVICE_BLOCKS, or TUTTI_DEVICE_CALLS=staged",
                        error.message, rank_, bytes >> 20, job_context_.device->number())};
  }

  Status zero(const cuda::DeviceMemory& memory) {
    const cuda::Driver& driver = job_context_.device->driver();
    auto stream = cuda::Stream::create(driver);
    if (!stream) return stream.error();
    TUTTI_TRY(driver.check(driver.api().memset_d8_async(memory.address(), 0, memory.bytes(), stream->handle()),
                           "zeroing a rank's connections"));
    return stream->synchronize();
  }

  // Checks whether all ranks got their blocks from the budget. If not, for example because another communicator has
  // taken some meanwhile, switches to calls in rounds, or returns an error if that is not possible.
  Status check_budget(const std::vector<std::string>& handles) {
    const auto has_blocks = [](const std::string& blob) { return blob.starts_with(kHasBlocks); };
    if (std::all_of(handles.begin(), handles.end(), has_blocks)) return {};
    if (!how_.change_to_rounds())
      return Error{ErrorCode::kUnsupported, ErrorScope::kCommunicator, -1, std::string(kTooFewBlocks)};
    resources_->block_budget_ = {};
    resources_->settings_.in_rounds = true;
    resources_->settings_.kept_blocks = how_.kept_blocks;
    resources_->settings_.transfers = false;
    return {};
  }

  // The work before the third round: opens the arena of every peer, joins the LaunchGroup, and writes the table of
  // connections to the device. `handles`: the contributions to the second round.
  Status connect(const std::vector<std::string>& handles) {
    TUTTI_TRY(check_budget(handles));
    const cuda::Driver& driver = job_context_.device->driver();
    auto scope = cuda::ContextScope::enter(driver, job_context_.device->context());
    if (!scope) return scope.error();
    std::vector<DeviceArena::ArenaPeer> peers(ranks_);
    resources_->remote_ranks_.reserve(ranks_);
    resources_->opened_.reserve(ranks_);
    ExportedMemory::Peers others{.reach = {}, .job_ranks = members_, .exchange = job_context_.exchange};
    std::vector<std::uint32_t> launch_group;
    for (std::uint32_t r = 0; r < ranks_; ++r) {
      others.reach.push_back(reach_of(r));
      if (offers_[r].same_process(offers_[rank_])) {
        TUTTI_TRY(reach_here(r, peers[r]));
        if (offers_[r].same_device(offers_[rank_])) launch_group.push_back(r);
        continue;
      }
      const auto shared = unpack<RemoteMemory>(after(kHasBlocks, handles[r]));
      if (!shared) return invalid_argument(fmt::format("the memory of rank {} cannot be shared", r));
      auto opened = cuda::PeerMemory::open(driver, shared->arena);
      if (!opened) return unreachable(opened.error());
      peers[r].arena = opened->address();
      resources_->remote_ranks_.push_back({.rank = r, .job_rank = members_[r]});
      resources_->opened_.push_back({.rank = r, .memory = std::move(*opened)});
    }
    TUTTI_TRY(open_flags(handles));
    auto windows = DeviceWindows::make(job_context_.device, std::move(others), resources_->own_arena_->address());
    if (!windows) return windows.error();
    resources_->windows_ = std::move(*windows);
    resources_->launch_group_ = resources_->process_->launch_group(
        resources_->process_->of_rank(launch_group.front()).device, launch_group, launch_group.size() == ranks_);
    resources_->copy_engines_.emplace(how_.copy_method, job_context_.config.device_copies, rank_, resources_->windows_);
    const bool meets = how_.in_rounds || how_.copy_method == CopyEngines::Method::kWindows;
    if (meets) resources_->barrier_.emplace(*job_context_.device, rank_, resources_->flags_);
    const DeviceArena::Connections& transfers = resources_->arena_.transfer_connections();
    TUTTI_TRY(resources_->launch_group_->add_member(
        {.rank = rank_,
         .ranks = ranks_,
         .kept_blocks = how_.kept_blocks,
         .blocks_at_once = code_.blocks_at_once,
         .transfer_queues = 2 * (ranks_ - 1) * transfers.count,
         .peer_status = status_of_peers(),
         .warn = [log = log_](const std::string& text) { log.write(LogLevel::kWarn, "{}", text); },
         .barrier = meets ? &*resources_->barrier_ : nullptr,
         .status = resources_->status_}));
    return resources_->write_links(peers);
  }

  // Opens the flags of the ranks of other processes, which have shared them before the second round.
  Status open_flags(const std::vector<std::string>& handles) {
    if (exchange_ == nullptr) return {};  // no rank is in another process
    const auto number = [&](std::uint32_t r) {
      const auto shared = unpack<RemoteMemory>(after(kHasBlocks, handles[r]));
      return shared ? shared->flags : 0;
    };
    std::vector<std::uint32_t> numbers;
    for (std::uint32_t r = 0; r < ranks_; ++r) numbers.push_back(number(r));
    const std::int64_t deadline_ns =
        job_context_.clock->now_ns() + job_context_.config.setup_timeout.count() * 1'000'000;
    auto offers = collect_offers(*exchange_, rank_, numbers, resources_->flags_[rank_]->mapping(), *job_context_.clock,
                                 deadline_ns, gather_.has_failed());
    if (!offers) return offers.error();
    for (std::uint32_t r = 0; r < ranks_; ++r) {
      if (resources_->flags_[r] != nullptr) continue;
      auto opened = PeerFlags::open(job_context_.device->driver(), (*offers)[r].mapping);
      if (!opened) return opened.error();
      resources_->flags_[r] = std::move(*opened);
    }
    return {};
  }

  // Returns a function that returns the state of a peer. Any thread may call it. Only the status boards of the
  // shared-memory transport can be read by any thread, so with other transports the result is empty.
  std::function<PeerStatus(std::uint32_t)> status_of_peers() const {
    Transport* transport = host_environment_.transport.get();
    if (transport->name() != "shm") return {};
    return [transport](std::uint32_t peer) { return transport->peer_status(peer); };
  }

  ExportedMemory::Reach reach_of(std::uint32_t peer) const {
    if (!offers_[peer].same_process(offers_[rank_])) return ExportedMemory::Reach::kOtherProcess;
    return offers_[peer].same_device(offers_[rank_]) ? ExportedMemory::Reach::kSameDevice
                                                     : ExportedMemory::Reach::kSameProcess;
  }

  // Finds the arena of a peer in this process, and lets this rank's GPU access the GPU of that peer, if it is
  // another one.
  Status reach_here(std::uint32_t peer, DeviceArena::ArenaPeer& found) {
    const DeviceResources::Process::Share share = resources_->process_->of_rank(peer);
    if (share.arena == nullptr) return invalid_argument(fmt::format("rank {} of this process has no memory", peer));
    resources_->flags_[peer] = share.flags;
    found = {.arena = share.arena->address(), .all_of_memory = true};
    if (offers_[peer].same_device(offers_[rank_])) return {};
    const cuda::Driver& driver = job_context_.device->driver();
    const cuda::CUresult result = driver.api().ctx_enable_peer_access(share.device->context(), 0);
    if (result == cuda::CUresult::kPeerAccessAlreadyEnabled) return {};
    const Status reached = driver.check(result, fmt::format("reaching device {} from device {}", share.device->number(),
                                                            job_context_.device->number()));
    return reached.ok() ? Status() : unreachable(reached.error());
  }

  static Error unreachable(Error error) {
    error.message += "; `nvidia-smi topo -p2p r` shows which GPUs reach each other; containers need --ipc=host";
    return error;
  }

  const JobContext& job_context_;
  const std::vector<std::uint32_t>& members_;
  const std::uint32_t ranks_;
  const std::uint32_t rank_;
  const std::uint64_t communicator_;
  const Environment& host_environment_;
  const Gather& gather_;
  const Log log_;
  RankDevice::Code code_;
  std::vector<DeviceOffer> offers_;  // indexed by rank
  bool agreed_ = false;
  LaunchAgreement how_;
  bool has_blocks_ = true;
  std::string handle_;                         // a RemoteMemory; empty if all ranks are in this process
  std::shared_ptr<SegmentExchange> exchange_;  // of the members; null if all ranks are in this process
  std::unique_ptr<DeviceResources> resources_;
};

Result<std::unique_ptr<DeviceResources>> make_device_resources(const JobContext& job_context,
                                                               const std::vector<std::uint32_t>& members,
                                                               std::uint32_t rank, std::uint64_t communicator,
                                                               const Environment& resources, const Gather& gather) {
  if (!job_context.devices) return std::unique_ptr<DeviceResources>();
  return DeviceResourcesMaker(job_context, members, rank, communicator, resources, gather).make();
}

}  // namespace tutti::detail
