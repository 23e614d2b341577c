// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/docpage"
)

// notRun are the first pages' commands that no test runs, with the reasons.
var notRun = map[string]string{
	"make test": "it runs this test",
}

// TestReadme runs the commands of the first pages, in their order, in namespaces that look like a new
// machine: the source directory, /etc, /opt, /usr/local/bin and /usr/local/share are private copies, /run and
// /var/lib are empty, and there is no network but lo.
func TestReadme(t *testing.T) {
	dir := root(t)
	m := newMachine(t, dir)
	m.podman()
	for _, m.page = range docpage.Readme {
		text, err := os.ReadFile(filepath.Join(dir, m.page))
		if err != nil {
			t.Fatal(err)
		}
		steps, err := docpage.Parse(string(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range steps {
			if notRun[s.Command] == "" {
				m.step(s)
			}
		}
	}
	m.want("net.ipv4.ip_forward is 0 again", "0\n", "cat /proc/sys/net/ipv4/ip_forward")
	m.want("no link but lo is left", "lo\n", "ip -o link | cut -d' ' -f2 | cut -d: -f1 | grep -vE '^(sit0|tunl0|gre.*|erspan0|ip6.*|ip_vti0)(@|$)'")
	m.want("no plugin is left", "", "ls -A /opt/cni/bin")
	m.want("no file of a network is left", "", "ls /etc/cni/net.d | grep conf")
}

// machine is namespaces that end with the test.
type machine struct {
	*testing.T
	dir string // the source directory
	pid string // of the first process

	page string // whose commands run
}

// boot makes a machine of fresh namespaces. What it writes is in a tmpfs.
const boot = `
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/lib
for dir in /etc /opt /usr/local/bin /usr/local/share "$1"; do
	up=/run/copies$dir
	mkdir -p "$up/up" "$up/work"
	mount -t overlay overlay -o "lowerdir=$dir,upperdir=$up/up,workdir=$up/work" "$dir"
done
rm -rf /etc/cni /etc/containers /opt/cni
mkdir -p /etc/containers /run/netns
echo 0 >/proc/sys/net/ipv4/ip_forward
ip link set lo up
echo ready
exec sleep infinity`

func newMachine(t *testing.T, dir string) *machine {
	t.Helper()
	if err := os.MkdirAll("/etc/containers", 0o755); err != nil { // to be copied
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-ec", boot, "sh", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	before := podmanGroups()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the kernel kills all others in its namespace
		_ = cmd.Wait()
		for group := range podmanGroups() {
			if !before[group] {
				_ = os.Remove(group) // no namespace takes it along
			}
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("start a machine: %q, %v\n%s", line, err, said.String())
	}
	return &machine{T: t, dir: dir, pid: strconv.Itoa(cmd.Process.Pid)}
}

// podmanGroups are the control groups of podman's containers.
func podmanGroups() map[string]bool {
	found := map[string]bool{}
	for _, pattern := range []string{"/sys/fs/cgroup/libpod_parent/*", "/sys/fs/cgroup/*/libpod_parent/*"} {
		list, _ := filepath.Glob(pattern) // the patterns are valid
		for _, group := range list {
			found[group] = true
		}
	}
	return found
}

// shell runs a reader's command in the source directory.
func (m *machine) shell(command string) (printed string, err error) {
	cmd := exec.Command("nsenter", "-t", m.pid, "-n", "-m", "-p", "sh", "-c", `cd "$0"; eval "$1"`, m.dir, command)
	cmd.Env = append(os.Environ(), "PATH=/usr/local/bin:"+os.Getenv("PATH")) // where the page puts programs
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

func (m *machine) step(s docpage.Step) {
	m.Helper()
	at := fmt.Sprintf("%s:%d", m.page, s.Line)
	if s.File != "" {
		m.write(s.File, s.Text)
		return
	}
	printed, err := m.shell(s.Command)
	if err != nil {
		m.Fatalf("%s: %s: %v\n%s", at, s.Command, err, printed)
	}
	if !s.Matches(printed) {
		m.Errorf("%s: %s printed\n%sand not\n%s", at, s.Command, printed, strings.Join(s.Prints, "\n"))
	}
}

// write makes a file of the machine.
func (m *machine) write(path, text string) {
	m.Helper()
	cmd := exec.Command("nsenter", "-t", m.pid, "-m", "sh", "-ec", `mkdir -p "$(dirname "$0")"; cat >"$0"`, path)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		m.Fatalf("write %s: %v\n%s", path, err, out)
	}
}

func (m *machine) want(what, want, command string) {
	m.Helper()
	if got, _ := m.shell(command); got != want {
		m.Errorf("after the page: not so that %s: %q", what, got)
	}
}

// podman prepares what a reader's podman has: storage, and an image. Its limits stay below
// what needs CAP_SYS_RESOURCE, and crun would refuse hybrid cgroups.
func (m *machine) podman() {
	m.Helper()
	m.write("/etc/containers/storage.conf", "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\ngraphroot = \"/var/lib/containers/storage\"\n")
	m.write("/etc/containers/policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`)
	m.write("/etc/containers/containers.conf.d/test.conf", `
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
`)
	printed, err := m.shell(`set -e; root=/run/image; mkdir -p $root/bin $root/etc $root/proc $root/sys $root/dev $root/tmp
		cp "$(command -v busybox)" $root/bin/busybox; chroot $root /bin/busybox --install -s /bin
		tar -C $root -c . | podman import - busybox`)
	if err != nil {
		m.Fatalf("make an image: %v\n%s", err, printed)
	}
}
