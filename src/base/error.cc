#include "base/error.h"

#include <cerrno>

namespace trireme {

Fault fault_of_errno(int error_number, Fault other) {
  switch (error_number) {
    case EIO:  // disks and file systems
    case ENOSPC:
    case EDQUOT:
    case EROFS:  // Linux remounts a failing file system read-only
    case ESTALE:
    case ENODEV:
    case ENXIO:
    case ENOMEDIUM:
    case EREMOTEIO:
    case EUCLEAN:
    case EBADMSG:
    case EBUSY:
    case ETXTBSY:
    case ENOLCK:
    case ENOLINK:
    case ECOMM:
    case EPROTO:
    case ENOMEM:  // memory, processes, descriptors
    case EAGAIN:
    case ENFILE:
    case EMFILE:
    case ENOBUFS:
    case EINTR:
    case ENETDOWN:  // networks
    case ENETUNREACH:
    case ENETRESET:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ECONNABORTED:
    case ECONNREFUSED:
    case ECONNRESET:
    case ENOTCONN:  // also a FUSE file system whose server ended
    case ESHUTDOWN:
    case ETIMEDOUT:
    case EPIPE:
    case EADDRINUSE:
      return Fault::environment;
    default:
      return other;
  }
}

void invariant_failed(std::string_view msg, const char* file, int line) {
  throw Error(fmt::format("internal error: {} ({}:{})", msg, file, line));
}

}  // namespace trireme
