#include "transports/ucx/ucx_maker.h"

#include <fmt/format.h>

#include <utility>

#include "base/assert.h"
#include "transports/ucx/connections.h"
#include "transports/ucx/library.h"
#include "transports/ucx/worker.h"

namespace tutti {
namespace {

// The start of each offer; 2 is the version of the protocol between ranks. In the offer it is followed by the version
// of UCX without the major version, for example "ucx2.13.1" for UCX 1.13.1. Only the start is compared.
constexpr std::string_view kWire = "ucx2.";

// The DataPath over UCX. All of its work is done by its UcxWorker.
class UcxPath final : public DataPath {
 public:
  explicit UcxPath(std::shared_ptr<UcxWorker> worker) : worker_(std::move(worker)) {}
  ~UcxPath() override { worker_->end(); }

  std::string_view name() const override { return "ucx"; }
  bool reaches(std::uint32_t peer) const override { return !worker_->options().offers[peer].empty(); }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) override {
    TUTTI_ASSERT(reaches(peer));
    auto opened = worker_->open(peer, lane);
    if (!opened) return opened.error();
    return std::unique_ptr<SendConnection>(std::make_unique<UcxSendConnection>(worker_, **opened));
  }
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) override {
    TUTTI_ASSERT(reaches(peer));
    auto opened = worker_->open(peer, lane);
    if (!opened) return opened.error();
    return std::unique_ptr<ReceiveConnection>(std::make_unique<UcxReceiveConnection>(worker_, **opened));
  }
  void pump() override { worker_->pump(); }
  bool flush() override { return worker_->flush(); }
  std::string describe_path(std::uint32_t peer) override { return worker_->describe_path(peer); }
  std::optional<std::string> broken(std::uint32_t peer) override { return worker_->broken(peer); }
  void drain(std::int64_t timeout_ns) override { worker_->drain(timeout_ns); }
  std::string troubles() override { return worker_->troubles(); }

 private:
  std::shared_ptr<UcxWorker> worker_;  // shared with the connections, which may outlive the path
};

// Makes the UcxPaths of one rank, or of all ranks of one create_all().
class UcxMaker final : public DataPathMaker {
 public:
  explicit UcxMaker(std::shared_ptr<UcxContext> context) : context_(std::move(context)) {}

  std::string_view name() const override { return "ucx"; }
  std::string offer() const override {
    return std::string(kWire) + context_->library().version.substr(context_->library().version.find('.') + 1);
  }
  Result<std::unique_ptr<DataPath>> make(const DataPathHost& host, const DataPathOptions& options) override {
    for (std::size_t rank = 0; rank < options.offers.size(); ++rank) {
      const std::string& offer = options.offers[rank];
      if (offer.empty() || offer.starts_with(kWire)) continue;
      return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank),
                   fmt::format("rank {} has another version of Tutti or of UCX ('{}', here '{}'): give all ranks the "
                               "same",
                               rank, offer.substr(0, 40), this->offer())};
    }
    auto worker = UcxWorker::create(context_, host, options);
    if (!worker) return worker.error();
    return std::unique_ptr<DataPath>(std::make_unique<UcxPath>(std::move(*worker)));
  }

 private:
  std::shared_ptr<UcxContext> context_;  // can be shared with other ranks of the process
};

}  // namespace

Result<std::string> find_ucx() {
  auto library = UcxLibrary::open();
  if (!library) return library.error();
  return "UCX " + (*library)->version;
}

Result<std::shared_ptr<DataPathMaker>> make_ucx_maker(UcxPuts puts) {
  auto context = UcxContext::shared(puts);
  if (!context) return context.error();
  return std::shared_ptr<DataPathMaker>(std::make_shared<UcxMaker>(std::move(*context)));  // shared by communicators
}

}  // namespace tutti
