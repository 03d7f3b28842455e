/* Loaded into a process before libc: makes its N-th write, flush, truncation or rename below a folder fail.
 *
 *   NIP_FAULT_FOLDER  the folder; calls on files below it are counted
 *   NIP_FAULT_AT      the number of the call, from 0; no call fails if it is not set
 *   NIP_FAULT_HOW     kill, short, or the number of an error
 *   NIP_FAULT_LASTS   if set, every later call fails too
 *   NIP_FAULT_LOG     a file that gets a line for each counted call: its kind and its path
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <unistd.h>

static const char *folder, *how;
static long at = -1;
static int lasts, log_fd = -1;
static atomic_long seen;

__attribute__((constructor)) static void begin(void) {
    const char *number = getenv("NIP_FAULT_AT"), *log = getenv("NIP_FAULT_LOG");
    folder = getenv("NIP_FAULT_FOLDER");
    how = getenv("NIP_FAULT_HOW");
    lasts = getenv("NIP_FAULT_LASTS") != NULL;
    if (number != NULL && how != NULL) at = atol(number);
    if (log != NULL) log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

/* Return whether this call fails. */
static int faulty(const char *kind, const char *path) {
    if (folder == NULL || strncmp(path, folder, strlen(folder)) != 0) return 0;
    long number = atomic_fetch_add(&seen, 1);
    if (log_fd >= 0) dprintf(log_fd, "%s %s\n", kind, path);
    return at >= 0 && (number == at || (lasts && number > at));
}

static int faulty_fd(const char *kind, int fd) {
    char link[32], path[PATH_MAX + 1];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX);
    if (length <= 0) return 0;
    path[length] = 0;
    return faulty(kind, path);
}

static int fails(void) {
    if (strcmp(how, "kill") == 0) raise(SIGKILL);
    errno = atoi(how);
    return -1;
}

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (real == NULL) real = dlsym(RTLD_NEXT, #name)

/* Write half of the data; then kill the process, or return the short length or an error. */
#define HALF(call, size) \
    do { \
        ssize_t taken = (size) > 1 ? (call) : 0; \
        if (strcmp(how, "short") == 0 && taken > 0) return taken; \
        if (strcmp(how, "short") != 0) return fails(); \
    } while (0)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (faulty_fd("write", fd)) HALF(real(fd, data, size / 2), size);
    return real(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
    if (faulty_fd("write", fd)) HALF(real(fd, data, size / 2, offset), size);
    return real(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    if (faulty_fd("write", fd)) HALF(real(fd, data, size / 2, offset), size);
    return real(fd, data, size, offset);
}

ssize_t sendfile(int to, int from, off_t *offset, size_t size) {
    REAL(ssize_t, sendfile, int, int, off_t *, size_t);
    if (faulty_fd("write", to)) HALF(real(to, from, offset, 5000), size);
    return real(to, from, offset, size);
}

#define BY_FD(name, kind) \
    int name(int fd) { \
        REAL(int, name, int); \
        if (faulty_fd(kind, fd) && strcmp(how, "short") != 0) return fails(); \
        return real(fd); \
    }
BY_FD(fsync, "flush")
BY_FD(fdatasync, "flush")

#define TRUNCATE(name, type) \
    int name(int fd, type length) { \
        REAL(int, name, int, type); \
        if (faulty_fd("truncate", fd) && strcmp(how, "short") != 0) return fails(); \
        return real(fd, length); \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    if (faulty("rename", to) && strcmp(how, "short") != 0) return fails();
    return real(from, to);
}
