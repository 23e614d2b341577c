// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kept are the directories of the lab that survive a reboot.
const kept = "/var/lib/patchbay /var/lib/cni /etc/cni"

// Reboot kills everything at once and starts it again with another boot id. Only files on disk
// survive: no namespace, link or rule does. dockerd and the driver start in parallel, in any order.
func (l *Lab) Reboot() {
	l.Helper()
	disk := l.Dir("disk") + "/disk.tar"
	l.In("sh", "-c", "tar -cf "+disk+" "+kept)
	l.crash()
	up := make(chan struct{})
	go func() {
		defer close(up)
		_, _ = l.TryUp(l.Args...)
	}()
	ready := filepath.Join(l.dir, l.name, "ready")
	l.Eventually("the lab is up again", func() bool {
		_, err := os.Stat(ready)
		return err == nil
	})
	l.In("sh", "-ec", "tar -C / -xf "+disk+`; cat /proc/sys/kernel/random/uuid >"$0"; mount --bind "$0" /proc/sys/kernel/random/boot_id`, l.Dir("disk")+"/boot")
	l.furnish()
	l.StartDriver()
	<-up
	l.Docker("version")
}

// crash kills all processes in the lab, with its containers, and the lab.
func (l *Lab) crash() {
	l.Helper()
	pids := strings.Fields(l.Sh("docker -H " + l.host() + " ps -q | xargs -r docker -H " + l.host() + " inspect --format '{{.State.Pid}}'"))
	holder := l.holder()
	mine, err := os.Readlink("/proc/" + holder + "/ns/mnt")
	must(l, err)
	all, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	must(l, err)
	for _, link := range all {
		if ns, err := os.Readlink(link); err == nil && ns == mine {
			pids = append(pids, strings.Split(link, "/")[2])
		}
	}
	for _, pid := range pids {
		if n, err := strconv.Atoi(pid); err == nil && n > 1 {
			_ = unix.Kill(n, unix.SIGKILL)
		}
	}
	_ = l.driver.Wait()
	l.driver = nil
	for _, file := range []string{"ready", "dockerd.pid"} {
		_ = os.Remove(filepath.Join(l.dir, l.name, file))
	}
	l.Eventually("the lab is down", func() bool { return !slices.ContainsFunc(pids, lives) })
	_ = os.Remove(filepath.Join(l.dir, l.name, "holder.pid"))
}

// KillDocker kills dockerd with SIGKILL and waits until dockerd's containerd has ended. If dockerd
// 20.10 started before that, it would wait in vain for the dying containerd
// (libcontainerd/supervisor: startContainerd).
func (l *Lab) KillDocker() {
	l.Helper()
	containerd := "/proc/" + l.Sh("cat /run/docker/containerd/containerd.pid") + "/comm"
	l.lab("kill", l.name)
	l.Eventually("containerd ends with dockerd", func() bool {
		comm, err := os.ReadFile(containerd)
		return err != nil || string(comm) != "containerd\n"
	})
}

// lives reports whether a process runs and is not a zombie.
func lives(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
