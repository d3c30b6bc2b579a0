// Admission: the handshake with each new connection of a RendezvousServer. If the other side proves that it has the
// job's key and its rank fits the job, the AdmissionHost (the server) takes over the connection. Otherwise, or if an
// error occurs, the connection is refused with a reason, or only closed, while the server keeps waiting for the real
// ranks. bootstrap_wire.h describes the messages. While the server runs, only its thread uses an Admission.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/server_connection.h"

namespace tutti::detail {

// The part of the server that an Admission calls.
class AdmissionHost {
 public:
  // Returns the reason why the server refuses a rank that has proved that it has the key, for example a wrong
  // number of ranks. Empty if the server admits the rank.
  virtual std::string fault_of_rank(const wire::RankInfo& rank_info) const = 0;
  // True if the set-up has failed. In that case a rank for which fault_of_rank() returns a reason does not get that
  // reason, and its connection is only closed. The reason would end the rank's search for a server. The rank may be
  // making its next attempt at set-up, for which another server will soon listen, so it must go on searching.
  virtual bool has_failed() const = 0;
  // Takes over the connection of a rank without a fault.
  virtual void admit(const std::shared_ptr<RankConnection>& client, const wire::RankInfo& rank_info) = 0;
  // Called when a connection has ended before it was admitted, except if close_all() has closed it.
  virtual void unadmitted_ended() = 0;

 protected:
  ~AdmissionHost() = default;
};

class Admission {
 public:
  using ConnectionPtr = std::shared_ptr<RankConnection>;

  // `options` and `host` must outlive this object.
  Admission(const RendezvousServerOptions& options, AdmissionHost& host);

  // Begins the handshake with a new connection. Does not block: the handshake continues in callbacks of the event
  // loop.
  void begin(const ConnectionPtr& client);
  // Closes the oldest connection that is not admitted yet, to make place for a new one. This does little harm to a rank
  // of the job, because its handshake takes only a moment, and because the rank connects again if its connection was
  // closed.
  void close_oldest();
  // Adds a reason to refusals(), unless the list contains it already or has kMaxRefusals (admission.cc) reasons.
  void note_refusal(const std::string& reason);
  // Up to kMaxRefusals (admission.cc) different reasons for which connections were refused, closed or not accepted. The
  // server adds them to its errors that name ranks which have not joined.
  const std::vector<std::string>& refusals() const { return refusals_; }
  // Closes all connections that are not admitted yet.
  void close_all();

 private:
  using Step = void (Admission::*)(const ConnectionPtr&);
  // Reads the next message of the handshake into client->body, and then calls `next`. If the message is longer than
  // `longest`, client->body is empty. If the connection has ended, `next` is not called.
  void read(const ConnectionPtr& client, std::size_t longest, Step next);
  void take_hello(const ConnectionPtr& client);
  std::string fault_of_hello(const ConnectionPtr& client) const;
  void take_answer(const ConnectionPtr& client);
  void begin_tls(const ConnectionPtr& client, const wire::RankInfo& rank_info);
  void take_rank_info(const ConnectionPtr& client, const wire::RankInfo& rank_info);
  void refuse(const ConnectionPtr& client, const std::string& reason);
  void end(const ConnectionPtr& client);

  const RendezvousServerOptions& options_;
  AdmissionHost& host_;
  const Tag job_;
  // Number of connections that have been accepted so far.
  std::uint64_t connection_count_ = 0;
  // The connections that are not admitted yet, by connection number: their handshake is in progress, or they are
  // being refused.
  std::map<std::uint64_t, ConnectionPtr> unauthenticated_;
  std::vector<std::string> refusals_;
};

}  // namespace tutti::detail
