/* Loaded into a process with LD_PRELOAD: it fails, shortens or counts what the process writes below a folder, or
 * kills the process at its n-th write, and sets its clock. A control page that other processes map, too, says which
 * (see shim.py, which has the same layout). Processes that are started from there do not load it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITES = 1, SYNCS = 2, ALLOCATIONS = 4, NAMES = 8 };
enum { BEFORE = 0, AFTER = 1, HALF = 2 };

struct control {
    int64_t countdown;  /* kill this process at the n-th operation; 0: never */
    int64_t when;       /* before it, after it, or after half of a write */
    int64_t error;      /* errno that operations fail with; 0: they work */
    int64_t operations; /* which of them fail: bits */
    int64_t halves;     /* writes store half of what they are given and say so */
    int64_t clock_ns;   /* added to the wall clock */
    int64_t seen;       /* how many operations there were */
    char under[512];    /* what their paths begin with */
};

static struct control *control;
static pid_t own;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Also what a process calls that was forked after this was loaded, when its environment names a page. */
__attribute__((constructor)) void begin_shim(void) {
    const char *path = getenv("LA_SHIM_CONTROL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *page = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (page != MAP_FAILED)
            control = page;
    }
    own = getpid();
    unsetenv("LD_PRELOAD");
    unsetenv("LA_SHIM_CONTROL");
}

static int below(const char *path) {
    return control && control->under[0] && !strncmp(path, control->under, strlen(control->under));
}

static int ours(int fd) {
    char link[64], path[600];
    if (!control || !control->under[0])
        return 0;
    char *end = link + sizeof link - 1;
    *end = 0;
    int number = fd;
    do
        *--end = '0' + number % 10;
    while (number /= 10);
    end -= 14;
    memcpy(end, "/proc/self/fd/", 14);
    ssize_t length = readlink(end, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return below(path);
}

static void die(void) { kill(getpid(), SIGKILL); }

/* 1 when the process dies at this operation, as `when` says. */
static int counted(void) {
    __atomic_add_fetch(&control->seen, 1, __ATOMIC_SEQ_CST);
    if (getpid() != own || __atomic_load_n(&control->countdown, __ATOMIC_SEQ_CST) <= 0)
        return 0;
    if (__atomic_sub_fetch(&control->countdown, 1, __ATOMIC_SEQ_CST) != 0)
        return 0;
    if (control->when == BEFORE)
        die();
    return 1;
}

static int fails(int kind) {
    int64_t error = __atomic_load_n(&control->error, __ATOMIC_SEQ_CST);
    return error && (control->operations & kind) ? (int)error : 0;
}

#define OPERATION(mine, kind, failed, real)                                                                           \
    if (!(mine))                                                                                                      \
        return real;                                                                                                  \
    int dying = counted(), error = fails(kind);                                                                       \
    if (error) {                                                                                                      \
        errno = error;                                                                                                \
        return failed;                                                                                                \
    }                                                                                                                 \
    __auto_type result = real;                                                                                        \
    if (dying)                                                                                                        \
        die();                                                                                                        \
    return result;

#define WRITE(half, whole)                                                                                            \
    if (!ours(fd))                                                                                                    \
        return whole;                                                                                                 \
    int dying = counted(), error = fails(WRITES);                                                                     \
    if (error) {                                                                                                      \
        errno = error;                                                                                                \
        return -1;                                                                                                    \
    }                                                                                                                 \
    ssize_t result = (control->halves || (dying && control->when == HALF)) ? half : whole;                            \
    if (dying)                                                                                                        \
        die();                                                                                                        \
    return result;

ssize_t write(int fd, const void *data, size_t size) {
    WRITE(REAL(write)(fd, data, size / 2 ? size / 2 : size), REAL(write)(fd, data, size))
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    WRITE(REAL(pwrite)(fd, data, size / 2 ? size / 2 : size, at), REAL(pwrite)(fd, data, size, at))
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return pwrite(fd, data, size, at); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    WRITE(REAL(pwrite)(fd, parts[0].iov_base, parts[0].iov_len / 2, at), REAL(pwritev)(fd, parts, count, at))
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) { return pwritev(fd, parts, count, at); }
int fdatasync(int fd) { OPERATION(ours(fd), SYNCS, -1, REAL(fdatasync)(fd)) }
int fsync(int fd) { OPERATION(ours(fd), SYNCS, -1, REAL(fsync)(fd)) }
int ftruncate(int fd, off_t size) { OPERATION(ours(fd), ALLOCATIONS, -1, REAL(ftruncate)(fd, size)) }
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
int posix_fallocate(int fd, off_t from, off_t size) {
    OPERATION(ours(fd), ALLOCATIONS, error, REAL(posix_fallocate)(fd, from, size))
}
int posix_fallocate64(int fd, off_t from, off_t size) { return posix_fallocate(fd, from, size); }
int rename(const char *from, const char *to) { OPERATION(below(from), NAMES, -1, REAL(rename)(from, to)) }
int renameat2(int one, const char *from, int other, const char *to, unsigned flags) {
    OPERATION(below(from), NAMES, -1, REAL(renameat2)(one, from, other, to, flags))
}
int unlink(const char *path) { OPERATION(below(path), NAMES, -1, REAL(unlink)(path)) }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    int64_t more = control ? __atomic_load_n(&control->clock_ns, __ATOMIC_SEQ_CST) : 0;
    if (!result && more && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t all = now->tv_sec * 1000000000LL + now->tv_nsec + more;
        now->tv_sec = all / 1000000000LL;
        now->tv_nsec = all % 1000000000LL;
    }
    return result;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return result;
}
time_t time(time_t *into) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (into)
        *into = found.tv_sec;
    return found.tv_sec;
}
