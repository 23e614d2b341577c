// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/test/probe"
)

// startStream sends 1000 datagrams a second from one pod to another, which answers each, until end
// is called. end fails the test if one was lost. Both ends run in this process, because a process
// in a container might wait for a CPU.
func (k *cluster) startStream(from, to string) (end func()) {
	k.Helper()
	return k.startStreamTo(from, hostPort(k.addrs(to)[0], k.streamServer(to)), "from "+from+" to "+to)
}

// startStreamTo does so with the address of a server.
func (k *cluster) startStreamTo(from, addr, what string) (end func()) {
	k.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var got probe.Streamed
	done := make(chan error, 1)
	go func() {
		done <- within(k.podNS(from), func() (err error) {
			if _, err = probe.Who("udp", addr); err == nil {
				got, err = probe.Stream(ctx, addr, time.Millisecond)
			}
			return err
		})
	}()
	return func() {
		k.Helper()
		cancel()
		if err := <-done; err != nil {
			k.Fatalf("stream %s: %v", what, err)
		}
		k.Logf("%s in %v: %d sent, %d answered", what, got.Took.Round(time.Millisecond), got.Sent, got.Answered)
		if got.Answered != got.Sent || got.Sent == 0 {
			k.Errorf("%s: %d of %d datagrams lost", what, got.Sent-got.Answered, got.Sent)
		}
	}
}

// streamServer serves in a pod's namespace, on a separate port.
func (k *cluster) streamServer(pod string) (port int) {
	k.Helper()
	err := within(k.podNS(pod), func() (err error) {
		for port = probePort + 1; port < probePort+100; port++ {
			var s *probe.Server
			if s, err = probe.Serve(fmt.Sprintf(":%d", port)); err == nil {
				k.Cleanup(func() { s.Close() })
				return nil
			}
		}
		return err
	})
	if err != nil {
		k.Fatalf("serve in pod %s: %v", pod, err)
	}
	return port
}

// podNS returns the path by which the test reaches a pod's network namespace.
func (k *cluster) podNS(pod string) string {
	k.Helper()
	node := k.kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")
	return k.pathOn(node, k.attached(node, pod).NetNS)
}

// pathOn returns the path by which the test reaches a path on a node. It replaces /var/run, because
// that symbolic link would lead to the test's own /run.
func (k *cluster) pathOn(node, path string) string {
	k.Helper()
	return "/proc/" + k.pid(node+"-holder") + "/root" + strings.TrimPrefix(path, "/var")
}

// psAttachment is an attachment in `patchbay ps --json`.
type psAttachment struct {
	Network, Pod, NetNS string
	ContainerID         string
	Alive               bool
	Addresses           []string
}

// attachments lists the attachments of a node's pods with a name, one for each sandbox.
func (k *cluster) attachments(node, pod string) (list []psAttachment) {
	k.Helper()
	var all []psAttachment
	if err := json.Unmarshal([]byte(k.node(node, patchbay(), "ps", "--json")), &all); err != nil {
		k.Fatal(err)
	}
	for _, a := range all {
		if a.Pod == "default/"+pod && a.Network == "pods" { // not the loopback
			for i := range a.Addresses {
				a.Addresses[i], _, _ = strings.Cut(a.Addresses[i], "/")
			}
			list = append(list, a)
		}
	}
	return list
}

// attached waits until a pod has one attachment, and answers.
func (k *cluster) attached(node, pod string) (a psAttachment) {
	k.Helper()
	eventually(k, pod+" is attached", func() error {
		list := k.attachments(node, pod)
		if len(list) != 1 || !list[0].Alive || len(list[0].Addresses) != 2 {
			return fmt.Errorf("%+v", list)
		}
		a = list[0]
		return exec.Command(k.script, "node", node, probeProgram(), "who", "tcp", hostPort(a.Addresses[0], probePort)).Run()
	})
	return a
}
