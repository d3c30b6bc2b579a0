// UcxReceiver: the receiving direction of all lanes of a UcxWorker. It puts messages in order, fetches messages that
// are only announced, reports released messages to the peers, and advertises slots for long messages. Use it in the
// thread that drives progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transports/ucx/endpoints.h"
#include "transports/ucx/lane.h"
#include "transports/ucx/ucp_worker.h"

namespace tutti {

class UcxReceiver {
 public:
  // Both arguments must outlive this object.
  UcxReceiver(UcpWorker& ucp, UcxEndpoints& endpoints) : ucp_(ucp), endpoints_(endpoints) {}
  UcxReceiver(const UcxReceiver&) = delete;
  UcxReceiver& operator=(const UcxReceiver&) = delete;

  // Takes a message that has arrived on the lane. `how`: the receive attributes that UCX passes to the callback.
  // Returns UCS_INPROGRESS if UCX must keep the data, and UCS_OK if UCX may free the data.
  ucs_status_t take(UcxLane& lane, const UcxHeader& header, void* data, std::size_t bytes, std::uint64_t how);
  // The next message in order. Its state is kEmpty if it has not arrived.
  UcxArrived& next(UcxLane& lane) { return lane.arrivals[lane.released % endpoints_.options().slots]; }
  void release(UcxLane& lane, UcxArrived& message);
  void report_all();  // sends the reports of released messages that are due and can be sent now
  bool all_reported() const { return reports_queue_.empty(); }

  // These two functions do the work that callbacks of UCX have queued. That work must not be done within callbacks.
  void fetch_announced();
  void offer_slots();
  void drop_all();  // gives back to UCX all data that UCX keeps for messages
  // Removes the slots from all lanes and returns them. The caller must keep them, because a peer may still write there
  // when this object does not exist any more.
  std::vector<std::unique_ptr<UcxSlots>> take_slots();

 private:
  ucs_status_t keep(UcxArrived& message, void* data, std::uint64_t how);
  void fetch(UcxArrived& message);
  void queue_offer(UcxLane& lane);
  bool offer_slots(UcxLane& lane);
  void queue_report(UcxLane& lane);
  void report_released(UcxLane& lane);

  static void on_fetched(void* request, ucs_status_t status, std::size_t bytes, void* message);
  static void on_offered(void* request, ucs_status_t status, void* lane);
  static void on_reported(void* request, ucs_status_t status, void* lane);

  UcpWorker& ucp_;  // belongs to the UcxWorker, like `endpoints_`
  UcxEndpoints& endpoints_;
  std::vector<UcxArrived*> announced_;   // messages to fetch when the callback of UCX has returned
  std::vector<UcxLane*> offering_;       // lanes that must still advertise their slots
  std::vector<UcxLane*> reports_queue_;  // lanes that have released messages to report
};

}  // namespace tutti
