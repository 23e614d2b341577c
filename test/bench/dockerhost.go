// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// dockerHost is one dockerd of test/labs/docker, with our driver beside it.
type dockerHost struct {
	kind, script string
	dir          string // LAB_DIR and our driver's state, on one disk with Docker's
	name         string // name in the lab
	api          *dockerAPI
	driver       *exec.Cmd
	log          *os.File
	logAt        int64
	proxy        *callTimer
}

// dockerConf configures the CNI plugins to do what Docker's bridge does: a bridge with a gateway,
// masquerade and hairpin, and accept rules in the firewall. It needs no portmap, because our driver
// adds portmap itself.
const dockerConf = `{"type":"bridge","bridge":"bench%[1]d","isGateway":true,"ipMasq":true,"hairpinMode":true,` +
	`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.%[1]d.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}},{"type":"firewall"}`

func dockerConfs() map[string]string {
	list := func(name, plugins string) string {
		return fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"plugins":[%s]}`, name, plugins)
	}
	return map[string]string{
		"two": list("two", fmt.Sprintf(dockerConf, 71)),
		"one": list("one", fmt.Sprintf(`{"type":"patchbay","plugins":[`+dockerConf+`]}`, 72)),
	}
}

// startDockerHost starts a dockerd and our driver, and makes the networks.
func startDockerHost(kind, plugins string) (_ *dockerHost, err error) {
	h := &dockerHost{kind: kind, name: "bench" + kind}
	if err := h.find(); err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	if h.dir, err = os.MkdirTemp(filepath.Join(cache, "patchbay"), "bench-"); err != nil { // not in memory, because dockerd cannot work there
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.stop())
		}
	}()
	if err := h.up(); err != nil {
		return nil, err
	}
	h.api = &dockerAPI{&http.Client{Transport: overUnix(filepath.Join(h.dir, h.name, "docker.sock"))}}
	if err := h.startDriver(plugins); err != nil {
		return nil, err
	}
	return h, h.networks()
}

// find looks for the programs and images that the lab needs.
func (h *dockerHost) find() error {
	root, err := reftest.Root()
	if err != nil {
		return err
	}
	h.script = filepath.Join(root, "test/labs/docker/dockerd")
	for _, program := range []string{"docker", "dockerd", "runc", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: %w", errNoDocker, err)
		}
	}
	return nil
}

func (h *dockerHost) up() error { return h.lab("up", h.name, h.kind) }

// lab runs the script that starts and stops dockerds.
func (h *dockerHost) lab(args ...string) error {
	cmd := exec.Command(h.script, args...)
	cmd.Env = append(os.Environ(), "LAB_DIR="+h.dir)
	out, err := os.CreateTemp("", "patchbay-lab-") // a file, because dockerd would hold a pipe open
	if err != nil {
		return err
	}
	defer out.Close()
	defer os.Remove(out.Name())
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%s %s: %w: %s", h.script, strings.Join(args, " "), err, bytes.TrimSpace(said))
	}
	return nil
}

// inside returns the path by which this process reaches a file in the lab's mount namespace.
func (h *dockerHost) inside(path string) (string, error) {
	pid, err := os.ReadFile(filepath.Join(h.dir, h.name, "holder.pid"))
	return filepath.Join("/proc", strings.TrimSpace(string(pid)), "root", path), err
}

func (h *dockerHost) startDriver(plugins string) error {
	bin := filepath.Join(h.dir, "patchbayd")
	if err := goBuild(bin, "./daemons/cmd/patchbayd"); err != nil {
		return err
	}
	confs, err := h.inside("etc/cni/net.d")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(confs, 0o755); err != nil {
		return err
	}
	if err := h.closeDirs(); err != nil {
		return err
	}
	for name, text := range dockerConfs() {
		if err := os.WriteFile(filepath.Join(confs, name+".conflist"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if h.log, err = os.Create(filepath.Join(h.dir, "driver.log")); err != nil {
		return err
	}
	holder := strings.Split(confs, "/")[2]
	h.driver = exec.Command("nsenter", "-t", holder, "-m", "-n", "--", bin, "docker", "--plugins", plugins,
		"--data-root", filepath.Join(h.dir, h.name, "data-"+h.kind))
	h.driver.Env = append(os.Environ(), "PATCHBAY_STATE_DIR="+filepath.Join(h.dir, "state"))
	h.driver.Stderr = h.log
	if err := h.driver.Start(); err != nil {
		return err
	}
	return h.awaitDriver()
}

// closeDirs makes the lab's directories writable only for root. Our driver refuses a state
// directory that other users can write to.
func (h *dockerHost) closeDirs() error {
	for _, dir := range []string{"run/patchbay", "var/lib/cni", "run/cni"} {
		path, err := h.inside(dir)
		if err != nil {
			return err
		}
		if err := os.Chmod(path, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// awaitDriver waits for the driver's socket, and puts the proxy in front of it.
func (h *dockerHost) awaitDriver() error {
	dir, err := h.inside("run/docker/plugins")
	if err != nil {
		return err
	}
	socket := filepath.Join(dir, "patchbay.sock")
	for range 200 {
		if _, err = os.Stat(socket); err == nil {
			h.proxy, err = newCallTimer(filepath.Join(dir, "timed.sock"), socket)
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	said, _ := os.ReadFile(h.log.Name())
	return fmt.Errorf("the driver does not come: %w: %s", err, said)
}

func (h *dockerHost) networks() error {
	return errors.Join(
		h.api.network("builtin", "", ""), h.api.network("two", "patchbay", "two"),
		h.api.network("one", "patchbay", "one"), h.api.network("timed", "timed", "two"),
	)
}

// stop ends everything and removes it.
func (h *dockerHost) stop() error {
	var errs []error
	if h.proxy != nil {
		errs = append(errs, h.proxy.server.Close())
	}
	if h.driver != nil && h.driver.Process != nil {
		_ = h.driver.Process.Signal(syscall.SIGTERM)
		_ = h.driver.Wait() // the error is the end that stop wanted
	}
	if h.log != nil {
		errs = append(errs, h.log.Close())
	}
	errs = append(errs, h.lab("down", h.name), os.RemoveAll(h.dir))
	return errors.Join(errs...)
}

// logFromHere makes pluginTimes skip what the driver has logged so far.
func (h *dockerHost) logFromHere() (err error) {
	fi, err := h.log.Stat()
	if err == nil {
		h.logAt = fi.Size()
	}
	return err
}

var pluginLine = regexp.MustCompile(`(?m) (ADD|DEL) (\S+) \S+: ok in (\S+)$`)

// pluginTimes reads the times of plugins from the driver's log.
func (h *dockerHost) pluginTimes() (map[string][]millisecond, error) {
	text, err := io.ReadAll(io.NewSectionReader(h.log, h.logAt, 1<<24))
	if err != nil {
		return nil, err
	}
	times := map[string][]millisecond{}
	for _, m := range pluginLine.FindAllStringSubmatch(string(text), -1) {
		took, err := time.ParseDuration(m[3])
		if err != nil {
			return nil, err
		}
		key := m[1] + " " + m[2]
		times[key] = append(times[key], millisecond(took)/1e6)
	}
	return times, nil
}
