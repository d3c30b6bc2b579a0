#include "transports/mixed/mixed_transport.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"

namespace tutti {
namespace {

// A connection to a peer that cannot read this rank's windows. Messages that would be published are sent from the
// window instead.
class RemoteSendConnection final : public SendConnection {
 public:
  // `local` has the table of windows. It must outlive the connection, which is the case because a communicator
  // destroys its connections before its transport.
  RemoteSendConnection(std::unique_ptr<SendConnection> remote, const ShmTransport& local)
      : remote_(std::move(remote)), local_(local) {}
  bool ready() override { return remote_->ready(); }
  std::byte* slot() override { return remote_->slot(); }
  void send_slot(std::uint64_t bytes, const CallTag& tag) override { remote_->send_slot(bytes, tag); }
  bool sends_from_memory() const override { return remote_->sends_from_memory(); }
  void send_from(const std::byte* data, std::uint64_t bytes, const CallTag& tag) override {
    remote_->send_from(data, bytes, tag);
  }
  void send_published(const WindowRef& place, std::uint64_t bytes, const CallTag& tag) override {
    const std::byte* data = local_.window_address(place, bytes);
    TUTTI_ASSERT(data != nullptr, "window {} is not registered, or ends before {} + {} bytes", place.window,
                 place.offset, bytes);
    // For a segment of the shared heap, `window` is empty, and only the message is passed: a network card could
    // otherwise pin all pages of the segment.
    const std::span<const std::byte> window = local_.window_memory(place);
    remote_->send_pinned(window.empty() ? std::span(data, bytes) : window, data, bytes, tag);
  }
  void send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                   const CallTag& tag) override {
    remote_->send_pinned(whole, data, bytes, tag);
  }
  std::uint64_t min_aimed_bytes() const override { return remote_->min_aimed_bytes(); }
  bool aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset) override {
    return remote_->aim(call, output_bytes, offset);
  }
  std::uint64_t send_aimed(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                           const CallTag& tag) override {
    return remote_->send_aimed(whole, data, bytes, tag);
  }
  bool pins_done() override { return remote_->pins_done(); }
  void drop_pins() override { remote_->drop_pins(); }
  void send_delivered(std::uint64_t, const CallTag&) override {
    TUTTI_ASSERT(false, "a remote peer's output cannot be stored to");
  }
  bool drained() override { return remote_->drained(); }
  bool handed_over() override { return remote_->handed_over(); }
  bool lingers() const override { return remote_->lingers(); }

 private:
  std::unique_ptr<SendConnection> remote_;
  const ShmTransport& local_;
};

// Returns "mixed" if the remote transport is TCP, and otherwise for example "shm+verbs". If only this rank has a local
// index, the result is the name of the remote transport, because only that one carries messages.
std::string name_of(const MixedOptions& options, std::string_view remote) {
  const auto local = std::count_if(options.local_index.begin(), options.local_index.end(),
                                   [](std::int32_t index) { return index >= 0; });
  if (local == 1) return std::string(remote);
  return remote == "tcp" ? "mixed" : fmt::format("shm+{}", remote);
}

// A window about which the remote transport may cache data, for example registrations with a network card. The
// destructor drops the cached data before the window ends.
class CachedWindow final : public Window {
 public:
  CachedWindow(std::unique_ptr<Window> window, MemoryReleaseCallback forget)
      : process_(getpid()), window_(std::move(window)), forget_(std::move(forget)) {}
  ~CachedWindow() override {
    if (getpid() != process_) return;  // a copy in a forked child must not deregister the memory of the rank
    runs_through([this] { forget_(data(), size()); });
  }
  std::byte* data() const override { return window_->data(); }
  std::size_t size() const override { return window_->size(); }

 private:
  pid_t process_;
  std::unique_ptr<Window> window_;
  MemoryReleaseCallback forget_;
};

}  // namespace

void MixedTransport::BothDoorbell::arm() {
  // The order matters, because arming the remote doorbell may discard earlier events of its descriptors. If the local
  // doorbell were armed first, the wake-up of a local peer could be discarded, and a local peer sends only one
  // wake-up for each sleep.
  remote_.arm();
  local_->arm();
}

void MixedTransport::BothDoorbell::disarm() {
  local_->disarm();
  remote_.disarm();
}

void MixedTransport::BothDoorbell::sleep(std::int64_t timeout_ns) {
  remote_.sleep(timeout_ns);
  local_->disarm();
}

MixedTransport::MixedTransport(MixedOptions options, std::unique_ptr<ShmTransport> local,
                               std::unique_ptr<Transport> remote, std::unique_ptr<DescriptorDoorbell> local_doorbell,
                               PollDoorbell& remote_doorbell)
    : options_(std::move(options)),
      name_(name_of(options_, remote->name())),
      local_(std::move(local)),
      remote_(std::move(remote)),
      doorbell_(std::move(local_doorbell), remote_doorbell) {}

Result<std::unique_ptr<MixedTransport>> MixedTransport::create(MixedOptions options,
                                                               std::unique_ptr<ShmTransport> local,
                                                               std::unique_ptr<Transport> remote,
                                                               PollDoorbell& remote_doorbell) {
  TUTTI_ASSERT(options.rank < options.ranks && options.local_index.size() == options.ranks);
  TUTTI_ASSERT(options.local_index[options.rank] >= 0);
  TUTTI_ASSERT(&remote->doorbell() == &remote_doorbell && local->slot_bytes() == remote->slot_bytes());
  auto local_doorbell = local->create_descriptor_doorbell();
  if (!local_doorbell) return local_doorbell.error();
  for (const int fd : (*local_doorbell)->descriptors()) TUTTI_TRY(remote_doorbell.add_wait_source(fd));
  // `new`, because std::make_unique cannot call the private constructor.
  return std::unique_ptr<MixedTransport>(new MixedTransport(std::move(options), std::move(local), std::move(remote),
                                                            std::move(*local_doorbell), remote_doorbell));
}

MixedTransport::Route MixedTransport::route(std::uint32_t peer) const {
  TUTTI_ASSERT(peer < options_.ranks);
  const std::int32_t index = options_.local_index[peer];
  if (index >= 0) return {*local_, static_cast<std::uint32_t>(index)};
  return {*remote_, peer};
}

std::uint32_t MixedTransport::slots() const { return std::min(local_->slots(), remote_->slots()); }
std::uint32_t MixedTransport::lanes() const { return std::min(local_->lanes(), remote_->lanes()); }

Result<std::unique_ptr<SendConnection>> MixedTransport::open_send(std::uint32_t peer, std::uint16_t lane) {
  const auto [transport, index] = route(peer);
  auto connection = transport.open_send(index, lane);
  if (!connection || options_.local_index[peer] >= 0) return connection;
  return std::unique_ptr<SendConnection>(std::make_unique<RemoteSendConnection>(std::move(*connection), *local_));
}

Result<std::unique_ptr<ReceiveConnection>> MixedTransport::open_receive(std::uint32_t peer, std::uint16_t lane) {
  const auto [transport, index] = route(peer);
  return transport.open_receive(index, lane);
}

void MixedTransport::enter_call(const CallTag& tag, const WindowRef& output) {
  local_->enter_call(tag, output);
  remote_->enter_call(tag, {});  // no output is offered, because remote peers cannot use peer_output()
}

void MixedTransport::leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) {
  local_->leave_call(tag, failure);
  remote_->leave_call(tag, failure);
}

PeerStatus MixedTransport::peer_status(std::uint32_t peer) {
  const auto [transport, index] = route(peer);
  return transport.peer_status(index);
}

std::optional<CallTag> MixedTransport::peer_call(std::uint32_t peer, std::uint64_t sequence) {
  const auto [transport, index] = route(peer);
  return transport.peer_call(index, sequence);
}

std::optional<CallFailure> MixedTransport::peer_failure(std::uint32_t peer, std::uint64_t sequence) {
  const auto [transport, index] = route(peer);
  return transport.peer_failure(index, sequence);
}

bool MixedTransport::peer_has_left(std::uint32_t peer, std::uint64_t sequence) {
  const auto [transport, index] = route(peer);
  return transport.peer_has_left(index, sequence);
}

std::optional<std::byte*> MixedTransport::peer_output(std::uint32_t peer, std::uint64_t sequence, std::uint64_t bytes) {
  // A network transport writes into outputs only by SendConnection::aim().
  if (options_.local_index[peer] < 0) return nullptr;
  const auto [transport, index] = route(peer);
  return transport.peer_output(index, sequence, bytes);
}

Result<std::unique_ptr<Window>> MixedTransport::allocate_window(std::size_t bytes) {
  return wrap_window(local_->allocate_window(bytes));
}

// Adopting replaces the pages of the memory, so data that the remote transport has cached about them is dropped
// first.
Result<std::unique_ptr<Window>> MixedTransport::adopt_window(void* data, std::size_t bytes) {
  if (const MemoryReleaseCallback forget = remote_->memory_release_callback()) forget(data, bytes);
  return wrap_window(local_->adopt_window(data, bytes));
}

Result<std::unique_ptr<Window>> MixedTransport::wrap_window(Result<std::unique_ptr<Window>> window) {
  MemoryReleaseCallback forget = remote_->memory_release_callback();
  if (!window || !forget) return window;
  return std::unique_ptr<Window>(std::make_unique<CachedWindow>(std::move(*window), std::move(forget)));
}

void MixedTransport::pump() {
  local_->pump();
  remote_->pump();
}

bool MixedTransport::flush() {
  const bool local_done = local_->flush();  // called before the `&&` below, so that both transports are flushed
  return remote_->flush() && local_done;
}

void MixedTransport::announce_leave() {
  local_->announce_leave();
  remote_->announce_leave();
}

void MixedTransport::announce_abort() {
  local_->announce_abort();
  remote_->announce_abort();
}

}  // namespace tutti
