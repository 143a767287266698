/* What a disk can do to a process, below everything that it links: see disk.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum fault { NONE, FULL, EIO_ONCE, SHORT, KILL, TORN, UNSYNCED, DEAD, UNREAD, UNREADABLE };

static char folder[PATH_MAX];
static enum fault kind;
static long chosen, seen;

void disk_arm(const char *under, int fault, long step) {
    strncpy(folder, under, sizeof folder - 1);
    kind = fault, chosen = step, seen = 0;
}

long disk_steps(void) { return seen; }

/* For processes that know nothing of this. */
__attribute__((constructor)) static void arm(void) {
    const char *under = getenv("DISK_UNDER"), *fault = getenv("DISK_FAULT"), *step = getenv("DISK_STEP");
    if (under && fault && step) disk_arm(under, atoi(fault), atol(step));
}

/* Is this file under the folder, and which step is this one? -1 for no. */
static long step_of(int fd) {
    char name[64], path[PATH_MAX];
    if (!folder[0]) return -1;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, path, sizeof path - 1);
    if (n < 0) return -1;
    path[n] = 0;
    return strncmp(path, folder, strlen(folder)) ? -1 : seen++;
}

static int grows(int fd, off_t end) {
    struct stat info;
    return fstat(fd, &info) == 0 && end > info.st_size;
}

typedef ssize_t (*pwrite_t)(int, const void *, size_t, off_t);
typedef ssize_t (*write_t)(int, const void *, size_t);

static ssize_t put(int fd, const void *data, size_t n, off_t at) {
    return at < 0 ? ((write_t)dlsym(RTLD_NEXT, "write"))(fd, data, n) : ((pwrite_t)dlsym(RTLD_NEXT, "pwrite"))(fd, data, n, at);
}

/* Of the last two faults reads are the steps, of all others what is written and synced. */
static int reads(void) { return kind == UNREAD || kind == UNREADABLE; }

static int unread(int fd) {
    long step = reads() ? step_of(fd) : -1;
    return step >= 0 && (step == chosen || (kind == UNREADABLE && step > chosen)) ? errno = EIO, 1 : 0;
}

static ssize_t get(int fd, void *data, size_t n, off_t at) {
    if (unread(fd)) return -1;
    return ((ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(fd, data, n, at);
}

ssize_t read(int fd, void *data, size_t n) {
    return unread(fd) ? -1 : ((ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read"))(fd, data, n);
}
ssize_t pread(int fd, void *data, size_t n, off_t at) { return get(fd, data, n, at); }
ssize_t pread64(int fd, void *data, size_t n, off_t at) { return get(fd, data, n, at); }

static ssize_t faulty(int fd, const void *data, size_t n, off_t at) {
    long step = reads() ? -1 : step_of(fd);
    if (step >= 0 && kind != NONE && step >= chosen) {
        off_t from = at < 0 ? lseek(fd, 0, SEEK_CUR) : at;
        if ((kind == FULL || (kind == SHORT && step > chosen)) && grows(fd, from + (off_t)n)) return errno = ENOSPC, -1;
        if (kind == DEAD) return errno = EIO, -1;
        if (step == chosen) {
            if (kind == EIO_ONCE) return errno = EIO, -1;
            if (kind == SHORT) return put(fd, data, n / 2, at);
            if (kind == TORN) put(fd, data, n / 1024 * 512, at); /* a sector is written whole or not */
            if (kind == KILL || kind == TORN) kill(getpid(), SIGKILL);
        }
    }
    return put(fd, data, n, at);
}

ssize_t write(int fd, const void *data, size_t n) { return faulty(fd, data, n, -1); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { return faulty(fd, data, n, at); }
ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) { return faulty(fd, data, n, at); }

/* What has no bytes of its own: it happens, fails with EIO, or the process is gone before it. */
static int refused(int fd, int syncs) {
    long step = reads() ? -1 : step_of(fd);
    if (step < 0 || step < chosen) return 0;
    if (kind == DEAD || (kind == UNSYNCED && syncs)) return errno = EIO, 1;
    if (step > chosen) return 0;
    if (kind == EIO_ONCE) return errno = EIO, 1;
    if (kind == KILL) kill(getpid(), SIGKILL);
    return 0;
}

int fsync(int fd) { return refused(fd, 1) ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
int fdatasync(int fd) { return refused(fd, 1) ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
int ftruncate(int fd, off_t n) { return refused(fd, 0) ? -1 : ((int (*)(int, off_t))dlsym(RTLD_NEXT, "ftruncate"))(fd, n); }
int ftruncate64(int fd, off_t n) { return ftruncate(fd, n); }
