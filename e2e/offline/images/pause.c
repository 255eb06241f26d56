/* Holds a pod's namespaces: sleeps, reaps orphaned processes, and exits on SIGTERM or SIGINT. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int signal) {
  (void)signal;
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

static void stop(int signal) {
  (void)signal;
  _exit(0);
}

int main(void) {
  signal(SIGCHLD, reap);
  signal(SIGINT, stop);
  signal(SIGTERM, stop);
  for (;;) pause();
}
