// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// pair is two pods of this node with real network namespaces: a client, which tries to connect to
// a server each millisecond.
type pair struct {
	*cluster
	cni    *libcni.CNIConfig
	list   *libcni.NetworkConfigList
	server netip.Addr
	guard  *networkingv1.NetworkPolicy

	mu    sync.Mutex
	tries []try // the newest ones
}

// try is a connection.
type try struct {
	at       time.Time
	answered bool
}

// The client's namespace has a label and the client has one. The policy of the server wants both.
const (
	visitors, shop = "visitors", "shop"
	probePort      = 8080
)

// newPair attaches two pods with the network that the agent wrote.
func newPair(c *cluster, dir string) (*pair, error) {
	list, err := libcni.ConfListFromFile(filepath.Join(dir, "net.d/10-pods.conflist"))
	if err != nil {
		return nil, err
	}
	p := &pair{cluster: c, cni: libcni.NewCNIConfig([]string{filepath.Join(dir, "bin")}, nil), list: list}
	if err := errors.Join(c.space(visitors, map[string]string{"trusted": "yes"}), c.space(shop, nil)); err != nil {
		return nil, err
	}
	if _, err := p.attach(visitors, "client", map[string]string{"role": "friend"}); err != nil {
		return nil, err
	}
	if p.server, err = p.attach(shop, "server", map[string]string{"app": "server"}); err != nil {
		return nil, err
	}
	p.guard = &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "guard"}}
	p.guard.Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress"}
	p.allow(true)
	if err := c.policy(p.guard); err != nil {
		return nil, err
	}
	if err := inNamespace("server", p.listen); err != nil {
		return nil, err
	}
	failed := make(chan error, 1)
	go func() { failed <- inNamespace("client", p.probe) }()
	select {
	case err := <-failed:
		return nil, err
	case <-time.After(time.Second):
		return p, nil
	}
}

// allow makes the policy of the server allow the client, or no pod.
func (p *pair) allow(yes bool) {
	p.guard.Spec.Ingress = nil
	if yes {
		p.guard.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"trusted": "yes"}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"role": "friend"}},
		}}}}
	}
}

// attach makes a pod of this node, whose network namespace has the pod's name.
func (p *pair) attach(namespace, name string, labels map[string]string) (netip.Addr, error) {
	no := false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.PodSpec{
		NodeName: "n1", AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "web", Image: "registry.example.org/team/web:v1"}},
	}}
	stored := &corev1.Pod{}
	if err := p.api.Post().Resource("pods").Namespace(namespace).Body(pod).Do(context.Background()).Into(stored); err != nil {
		return netip.Addr{}, err
	}
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		return netip.Addr{}, fmt.Errorf("make a namespace: %w: %s", err, out)
	}
	got, err := p.cni.AddNetworkList(context.Background(), p.list, p.runtime(namespace, name, string(stored.UID)))
	if err != nil {
		return netip.Addr{}, err
	}
	result, err := types100.GetResult(got)
	if err != nil {
		return netip.Addr{}, err
	}
	var addrs []string
	for _, ip := range result.IPs {
		addrs = append(addrs, ip.Address.IP.String())
	}
	return netip.MustParseAddr(addrs[0]), p.run(namespace, name, addrs...)
}

func (p *pair) runtime(namespace, name, uid string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: "bench-" + name, NetNS: "/run/netns/" + name, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", name}, {"K8S_POD_INFRA_CONTAINER_ID", "bench-" + name}, {"K8S_POD_UID", uid}},
	}
}

// inNamespace runs f on a new thread in a network namespace. The thread ends with f.
func inNamespace(name string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		ns, err := netns.GetFromName(name)
		if err == nil {
			err = netns.Set(ns)
			ns.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// listen lets the kernel answer. Nobody accepts: the client closes each connection with a reset.
func (p *pair) listen() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: probePort}); err != nil {
		return err
	}
	if err := unix.Listen(fd, 1024); err != nil {
		return err
	}
	go func() {
		for {
			if conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC); err == nil {
				unix.Close(conn)
			}
		}
	}()
	return nil
}

// probe tries to connect each millisecond, for ever.
func (p *pair) probe() error {
	for next := time.Now(); ; next = next.Add(time.Millisecond) {
		time.Sleep(time.Until(next))
		if late := time.Since(next); late > 100*time.Millisecond {
			next = time.Now()
		}
		t := try{at: time.Now()}
		var err error
		if t.answered, err = p.connect(); err != nil {
			return err
		}
		p.mu.Lock()
		if p.tries = append(p.tries, t); len(p.tries) > 200000 {
			p.tries = p.tries[100000:]
		}
		p.mu.Unlock()
	}
}

// connect reports whether the server answers within four milliseconds, which is long on one machine.
func (p *pair) connect() (bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return false, err
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: probePort, Addr: p.server.As4()})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return false, err
	}
	polls := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for end := time.Now().Add(4 * time.Millisecond); time.Now().Before(end); {
		if n, err := unix.Poll(polls, 1); n > 0 && err == nil {
			return polls[0].Revents&unix.POLLERR == 0, nil
		}
	}
	return false, nil
}

// verdict waits until connections are answered, or are not, three times in a row, and returns when
// the first one of these was tried.
func (p *pair) verdict(want bool, since time.Time) (time.Time, error) {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if at, ok := p.changed(want, since); ok {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("no packet with the new verdict (answered: %v) within 30 s", want)
}

func (p *pair) changed(want bool, since time.Time) (first time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	run := 0
	for i := len(p.tries) - 1; i >= 0 && p.tries[i].answered == want && p.tries[i].at.After(since); i-- {
		first = p.tries[i].at
		run++
	}
	return first, run >= 3
}
