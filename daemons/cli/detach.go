// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// detach starts the keeper as a separate process, and returns when the keeper's socket exists.
// The keeper shares nothing with the process that starts it. It has a new session and / as its
// directory, and only Patchbay's variables in its environment. It inherits no descriptors except
// the socket and the log. With cgroup v2 it gets its own cgroup, if the system allows this. If
// another keeper already has the socket, detach does nothing.
func (c *dhcpCommand) detach() error {
	path := c.HostPrefix + c.SocketPath
	l, err := listen(path)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil
	}
	if err != nil {
		return err
	}
	ul := l.(*net.UnixListener)
	ul.SetUnlinkOnClose(false)
	defer ul.Close() //nolint:errcheck // the child has a copy
	socket, err := ul.File()
	if err != nil {
		return err
	}
	defer socket.Close() //nolint:errcheck // as above
	return c.start(socket)
}

func (c *dhcpCommand) start(socket *os.File) error {
	logFile, err := openLog()
	if err != nil {
		return err
	}
	defer logFile.Close() //nolint:errcheck // the child has a copy
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close() //nolint:errcheck // as above
	attr := &os.ProcAttr{
		Dir:   "/",
		Env:   environment(),
		Files: []*os.File{null, null, logFile, socket},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	if err := keepNothingOpen(); err != nil {
		return err
	}
	argv := append([]string{"patchbayd", "dhcp"}, c.flags()...)
	if group, err := cgroup(); err == nil {
		defer group.Close() //nolint:errcheck // a directory
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(group.Fd())
		if p, err := os.StartProcess("/proc/self/exe", argv, attr); err == nil {
			return p.Release()
		}
		attr.Sys.UseCgroupFD = false
	}
	p, err := os.StartProcess("/proc/self/exe", argv, attr)
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	return p.Release()
}

// keepNothingOpen sets close-on-exec on every descriptor except the first three.
// os.StartProcess would pass on descriptors that the calling program left open.
func keepNothingOpen() error {
	err := unix.CloseRange(firstFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) // Linux 5.11
	if err == nil {
		return nil
	}
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	for _, e := range list {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= firstFD {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// inherited is an environment variable that names the descriptor of the socket, 3. The parent
// cannot set LISTEN_PID, because it does not know the child's process id.
const inherited = "PATCHBAY_LISTEN_FD"

// environment returns only those variables that the keeper reads.
func environment() []string {
	env := []string{inherited + "=" + strconv.Itoa(firstFD), "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, name := range []string{"PATCHBAY_RUN_DIR", "PATCHBAY_CNI_DIR", "PATCHBAY_PROC"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func (c *dhcpCommand) flags() []string {
	out := []string{
		"--socketpath", c.SocketPath, "--timeout", c.Timeout.String(), "--resendmax", c.ResendMax.String(),
		"--resendtimeout", c.ResendTimeout.String(), "--watch", c.Watch.String(),
	}
	if c.PidFile != "" {
		out = append(out, "--pidfile", c.PidFile)
	}
	if c.HostPrefix != "" {
		out = append(out, "--hostprefix", c.HostPrefix)
	}
	if c.Broadcast {
		out = append(out, "--broadcast")
	}
	return out
}

// cgroup makes a separate cgroup for the keeper and opens it (cgroup v2; CLONE_INTO_CGROUP
// exists since Linux 5.7). In the parent's cgroup, systemd would end the keeper together with
// the runtime's service.
func cgroup() (*os.File, error) {
	const dir = "/sys/fs/cgroup/patchbay-dhcp"
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(dir), &st); err != nil {
		return nil, err
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, errors.New("no cgroup v2")
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return os.Open(dir)
}
