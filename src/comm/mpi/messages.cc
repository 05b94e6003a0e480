#include "comm/mpi/messages.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::mpi {

void check(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  run_failed("{} failed: {}", call, std::string_view(text, size_t(length)));
}

void Messages::send(MPI_Comm comm, const std::byte* data, int64_t bytes, int to, int tag, int64_t most) {
  while (true) {
    MPI_Request r = MPI_REQUEST_NULL;
    check(MPI_Isend(data, int(std::min(bytes, most)), MPI_BYTE, to, tag, comm, &r), "MPI_Isend");
    requests_.push_back(r), kinds_.push_back({-1, 0});
    if (bytes < most) return;
    data += most, bytes -= most;
  }
}

void Messages::receive(MPI_Comm comm, std::byte* data, int64_t bytes, int from, int tag, int64_t most) {
  while (true) {
    MPI_Request r = MPI_REQUEST_NULL;
    check(MPI_Irecv(data, int(std::min(bytes, most)), MPI_BYTE, from, tag, comm, &r), "MPI_Irecv");
    requests_.push_back(r), kinds_.push_back({from, std::min(bytes, most)});
    if (bytes < most) return;
    data += most, bytes -= most;
  }
}

void Messages::look_at(size_t i, const MPI_Status& status) {
  if (kinds_[i].from < 0) return;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  if (count == kinds_[i].bytes || wrong_bytes_ >= 0) return;
  wrong_bytes_ = count, wrong_from_ = kinds_[i].from;
}

bool Messages::done() {
  if (requests_.empty()) return true;
  statuses_.resize(requests_.size());
  int all = 0;
  const int code = MPI_Testall(int(requests_.size()), requests_.data(), &all, statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) check(code, "MPI_Testall");
  if (code == MPI_SUCCESS && !all) return false;
  wrong_bytes_ = wrong_from_ = -1;
  for (size_t i = 0; i < requests_.size(); i++) {
    const int one = code == MPI_SUCCESS ? MPI_SUCCESS : statuses_[i].MPI_ERROR;
    int kind = one;
    if (one != MPI_SUCCESS) MPI_Error_class(one, &kind);
    if (kind != MPI_ERR_TRUNCATE) check(one, kinds_[i].from < 0 ? "a send" : "a receive");
    look_at(i, statuses_[i]);
  }
  requests_.clear(), kinds_.clear();
  return true;
}

void Messages::give_up() {
  given_up_ = given_up_ || !requests_.empty();
  for (size_t i = 0; i < requests_.size(); i++) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (kinds_[i].from >= 0) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
  requests_.clear(), kinds_.clear();
}

}  // namespace trireme::mpi
