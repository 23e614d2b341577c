// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/yaml"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/node/networks"
	"github.com/patchbay-net/patchbay/internal/npwg"
	netmirror "github.com/patchbay-net/patchbay/internal/npwg/mirror"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// networksLab is an agent of node n1 with further networks, and a container runtime that executes the plugins' programs on the network's file
// that the agent writes.
type networksLab struct {
	*lab
	plugins string
	silent  bool // the runtime passes no annotations
}

func newNetworksLab(t *testing.T) *networksLab {
	l := &networksLab{lab: newLab(t, 1), plugins: reftest.Ours(t)}
	runNFT(t, "flush ruleset")
	t.Cleanup(func() { runNFT(t, "flush ruleset") })
	for _, name := range []string{"PATCHBAY_STATE_DIR", "PATCHBAY_RUN_DIR", "PATCHBAY_CNI_DIR"} {
		t.Setenv(name, l.dir)
	}
	return l
}

func (l *networksLab) start(change ...func(*Options)) {
	l.Helper()
	l.lab.start(append([]func(*Options){func(o *Options) {
		o.Networks.On, o.Networks.BinDir = true, l.plugins
		o.NetworkPolicy.Off = true
	}}, change...)...)
	l.await("the pods' network", func() bool { return strings.Contains(l.conf(), `"type": "networks"`) })
}

func (l *networksLab) kind(k networks.Kind) *jsonKind { return l.api.kinds.of(k) }

// define makes a NetworkAttachmentDefinition of namespace shop.
func (l *networksLab) define(name, config string) {
	l.kind(networks.Definitions).put(fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q,"uid":"uid-%s"},"spec":{"config":%q}}`, name, name, config))
}

// on returns the configuration of a network of the subnet 10.<number>.0.0/24.
func on(number int) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","type":"ptp","ipam":{"type":"host-local","subnet":"10.%d.0.0/24"}}`, number)
}

// defined waits until an ADD finds a definition.
func (l *networksLab) defined(name string) {
	l.Helper()
	l.await("definition "+name, func() bool { _, err := netmirror.Definition(l.opts.Paths, "shop", name); return err == nil })
}

// pod makes a pod of this node in namespace shop.
func (l *networksLab) pod(name, uid, selects string) {
	l.kind(networks.Pods).put(fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q,"uid":%q,"annotations":{"k8s.v1.cni.cncf.io/networks":%q}},"spec":{"nodeName":"n1"}}`, name, uid, selects))
}

// sandbox is the sandbox of a pod.
type sandbox struct {
	lab     *networksLab
	ns      string
	runtime *chain.Runtime
	chain.Attachment
}

// sandbox makes the namespace of a pod.
func (l *networksLab) sandbox(container, pod, uid, selects string) *sandbox {
	l.Helper()
	s := &sandbox{lab: l, ns: nettest.NewNS(l.T, container)}
	s.runtime = chain.New(chain.WithPath(l.plugins), chain.WithConfDir(filepath.Join(l.dir, "net.d")), chain.WithCacheDir(filepath.Join(l.dir, "runtime")))
	s.Attachment = chain.Attachment{
		ContainerID: container, NetNS: s.ns, IfName: "eth0", Capabilities: map[string]any{},
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", pod}, {"K8S_POD_UID", uid}},
	}
	if !l.silent {
		s.Capabilities["io.kubernetes.cri.pod-annotations"] = map[string]string{npwg.NetworksKey: selects, "kubernetes.io/config.source": "api"}
	}
	return s
}

func (s *sandbox) add() error {
	list, err := s.runtime.Load("pods")
	if err != nil {
		return err
	}
	_, err = s.runtime.Add(context.Background(), list, s.Attachment)
	return err
}

func (s *sandbox) del() error {
	list, err := s.runtime.Load("pods")
	if err != nil {
		return err
	}
	return s.runtime.Del(context.Background(), list, s.Attachment)
}

// started returns the sandbox of a pod whose ADD has succeeded.
func (l *networksLab) started(container, pod, uid, selects string) *sandbox {
	l.Helper()
	s := l.sandbox(container, pod, uid, selects)
	must(l.T, s.add())
	l.Cleanup(func() {
		if err := s.del(); err != nil {
			l.Errorf("DEL of %s: %v", container, err)
		}
	})
	return s
}

// refused runs an ADD that fails.
func (l *networksLab) refused(s *sandbox, code spec.Code, want string) {
	l.Helper()
	err := s.add()
	if err == nil || spec.ErrorCode(err) != code || !strings.Contains(err.Error(), want) {
		l.Errorf("ADD of %s: %v, code %d\nwant %s, code %d", s.ContainerID, err, spec.ErrorCode(err), want, code)
	}
}

// annotation returns what the API server has as a pod's network-status.
func (l *networksLab) annotation(name string) string {
	l.api.mu.Lock()
	defer l.api.mu.Unlock()
	o, err := readObject([]byte(l.api.kinds.of(networks.Pods).objects["shop/"+name]))
	if err != nil {
		return ""
	}
	return o.Annotations[npwg.StatusKey]
}

// awaitStatus waits until a pod's status has these networks, and returns it.
func (l *networksLab) awaitStatus(name, want string) (list []npwg.Status) {
	l.Helper()
	l.await("status "+want+" of "+name, func() bool {
		list = nil
		json.Unmarshal([]byte(l.annotation(name)), &list) //nolint:errcheck // then it is empty
		var got []string
		for i := range list {
			got = append(got, list[i].Name+" "+list[i].Interface)
		}
		return strings.Join(got, ", ") == want
	})
	return list
}

func (l *networksLab) patches() int { return l.podPatches().n }

func (l *networksLab) podPatches() podPatches {
	l.api.mu.Lock()
	defer l.api.mu.Unlock()
	return l.api.pods
}

func (l *networksLab) metric(name string) int { return (&serviceLab{lab: l.lab}).metric(name) }

// macOf returns the Ethernet address of a link in a namespace.
func macOf(t *testing.T, path, link string) (mac string) {
	t.Helper()
	ns, err := netns.Open(path)
	must(t, err)
	must(t, ns.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err == nil {
			mac = l.Attrs().HardwareAddr.String()
		}
		return err
	}))
	return mac
}

// From an annotation in the API to a pod with three interfaces, and back to its annotation network-status, with one request.
func TestPodNetworks(t *testing.T) {
	l := newNetworksLab(t)
	l.define("a", on(71))
	l.start()
	l.define("b", on(72))
	l.defined("a")
	l.defined("b")
	before := leak.Must(t)
	l.pod("web", "u1", "a, b@edge0")
	s := l.started("c1", "web", "u1", "a, b@edge0")
	for _, name := range []string{"eth0", "net1", "edge0"} {
		if !nettest.HasLink(t, s.ns, name) {
			t.Errorf("the pod has no %s", name)
		}
	}
	list := l.awaitStatus("web", "pods eth0, shop/a net1, shop/b edge0")
	var macs []string
	for i, first := range []string{"10.244.1.", "10.71.0.", "10.72.0."} {
		if got := list[i].IPs; len(got) == 0 || !strings.HasPrefix(got[0], first) {
			t.Errorf("%s has the addresses %q", list[i].Interface, got)
		}
		macs = append(macs, macOf(t, s.ns, list[i].Interface))
	}
	want := `[
    {
        "name": "pods",
        "interface": "eth0",
        "ips": [
            "` + strings.Join(list[0].IPs, "\",\n            \"") + `"
        ],
        "mac": "` + macs[0] + `",
        "mtu": 1430,
        "default": true,
        "dns": {}
    },
    {
        "name": "shop/a",
        "interface": "net1",
        "ips": [
            "10.71.0.2"
        ],
        "mac": "` + macs[1] + `",
        "mtu": 1500,
        "dns": {}
    },
    {
        "name": "shop/b",
        "interface": "edge0",
        "ips": [
            "10.72.0.2"
        ],
        "mac": "` + macs[2] + `",
        "mtu": 1500,
        "dns": {}
    }
]`
	if got := l.annotation("web"); got != want {
		t.Errorf("status\n%s\nwant\n%s", got, want)
	}
	if got := l.podPatches(); got.n != 1 || got.path != "/api/v1/namespaces/shop/pods/web/status" || got.uid != "u1" || !slices.Equal(got.keys, []string{npwg.StatusKey}) {
		t.Errorf("requests %+v", got)
	}
	for name, want := range map[string]int{"definitions": 2, "attached_pods": 1, "problems": 0, `statuses_total{result="written"}`: 1} {
		l.await(fmt.Sprintf("%s %d", name, want), func() bool { return l.metric("patchbay_node_networks_"+name) == want })
	}
	must(t, s.del())
	leak.NoLeaks(t, before)
	if problems := l.trouble.problems.All(); len(problems) > 0 {
		t.Error(problems)
	}
}

// The example of docs/networks.md works, and the status there is what the pod gets.
func TestNetworksPage(t *testing.T) {
	nettest.Need(t, nettest.LinkKind("macvlan"))
	page, err := os.ReadFile("../../docs/networks.md")
	must(t, err)
	l := newNetworksLab(t)
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}, PeerName: "eth1-peer"}))
	link, err := netlink.LinkByName("eth1")
	must(t, err)
	t.Cleanup(func() { netlink.LinkDel(link) }) //nolint:errcheck // the namespace ends
	must(t, netlink.LinkSetUp(link))
	l.start()
	for i, object := range strings.Split(block(t, string(page), "yaml"), "---\n") {
		o := map[string]any{}
		must(t, yaml.Unmarshal([]byte(object), &o))
		if pod, ok := o["spec"].(map[string]any); i == 1 && ok {
			o["metadata"].(map[string]any)["uid"], pod["nodeName"] = "u1", "n1"
		}
		l.kind(networks.Kind(i)).put(l.api.metadataFirst([]byte(text(o)), nil))
	}
	l.defined("storage")
	s := l.started("c1", "web", "u1", "storage")
	l.awaitStatus("web", "pods eth0, shop/storage net1")
	got := strings.NewReplacer(macOf(t, s.ns, "eth0"), "0a:b4:a6:50:85:a1", macOf(t, s.ns, "net1"), "7a:ae:39:92:e3:fa").Replace(l.annotation("web"))
	if want := strings.TrimSpace(block(t, string(page), "json")); got != want {
		t.Errorf("status\n%s\nthe page has\n%s", got, want)
	}
}

// block returns the first block of a page in a language.
func block(t *testing.T, page, language string) string {
	t.Helper()
	_, rest, found := strings.Cut(page, "```"+language+"\n")
	text, _, ends := strings.Cut(rest, "```\n")
	if !found || !ends {
		t.Fatalf("the page has no %s", language)
	}
	return text
}

// A definition that is deleted while a pod uses it: the pod's DEL works, and new pods fail with what to do. With a changed one, new pods get the new one.
func TestDefinitionGoes(t *testing.T) {
	l := newNetworksLab(t)
	l.define("a", on(71))
	l.start()
	l.defined("a")
	before := leak.Must(t)
	s := l.sandbox("c1", "web", "u1", "a")
	must(t, s.add())
	l.define("a", on(73))
	l.await("the new definition", func() bool {
		d, err := netmirror.Definition(l.opts.Paths, "shop", "a")
		return err == nil && d.Config == on(73)
	})
	l.pod("next", "u2", "a")
	next := l.started("c2", "next", "u2", "a")
	if got := l.awaitStatus("next", "pods eth0, shop/a net1"); got[1].IPs[0] != "10.73.0.2" {
		t.Errorf("addresses %q", got[1].IPs)
	}
	l.kind(networks.Definitions).remove("shop/a")
	l.await("no definition", func() bool { _, err := netmirror.Definition(l.opts.Paths, "shop", "a"); return err != nil })
	l.refused(l.sandbox("c3", "late", "u3", "a"), spec.CodeTryAgain, "create the NetworkAttachmentDefinition shop/a, or see that `patchbayd node` runs")
	must(t, s.del())
	must(t, next.del())
	leak.NoLeaks(t, before)
}

// Without the agent and the API server, pods start on definitions that the node has. What the node has not heard of fails, and starts when the
// agent is back. So does the status.
func TestPodNetworksWithoutAgent(t *testing.T) {
	l := newNetworksLab(t)
	l.define("a", on(71))
	l.start()
	l.defined("a")
	l.stop()
	l.define("later", on(72))
	l.pod("web", "u1", "a")
	l.pod("next", "u2", "later")
	l.started("c1", "web", "u1", "a")
	next := l.sandbox("c2", "next", "u2", "later")
	l.refused(next, spec.CodeTryAgain, "definition shop/later: not in the node's mirror")
	if nettest.HasLink(t, next.ns, "eth0") || nettest.HasLink(t, next.ns, "net1") {
		t.Error("a pod without its networks has an interface")
	}
	l.api.say(func(s *apiServer) { s.refuse = http.StatusInternalServerError })
	l.start()
	l.started("c3", "more", "u3", "a")
	l.refused(next, spec.CodeTryAgain, "definition shop/later: not in the node's mirror")
	l.awaitProblem(networksUnfollowed)
	l.api.say(func(s *apiServer) { s.refuse = 0 })
	l.awaitStatus("web", "pods eth0, shop/a net1")
	l.defined("later")
	must(t, next.add())
	defer next.del() //nolint:errcheck // the namespaces end
	l.awaitStatus("next", "pods eth0, shop/later net1")
	l.await("no problem", func() bool { return len(l.trouble.problems.All()) == 0 })
	patches := l.patches()
	l.stop()
	l.start()
	l.await("the pods", func() bool { return l.metric("patchbay_node_networks_attached_pods") == 2 })
	if got := l.patches(); got != patches {
		t.Errorf("a new agent wrote %d statuses again", got-patches)
	}
}

// A pod that goes, or is replaced by one of its name, before its status is written gets none.
func TestPodGoesBeforeItsStatus(t *testing.T) {
	l := newNetworksLab(t)
	l.define("a", on(71))
	l.start()
	l.defined("a")
	for name, change := range map[string]func(){
		"gone":     func() { l.kind(networks.Pods).remove("shop/web") },
		"replaced": func() { l.pod("web", "u2", "") },
	} {
		t.Run(name, func(t *testing.T) {
			l.api.say(func(s *apiServer) { s.pods = podPatches{refuse: http.StatusServiceUnavailable} })
			l.pod("web", "u1", "a")
			s := l.sandbox("c-"+name, "web", "u1", "a")
			must(t, s.add())
			defer s.del() //nolint:errcheck // the namespaces end
			l.awaitProblem(networksUntold)
			// The watch is deaf, so the agent does not know of the change when it writes.
			l.api.say(func(s *apiServer) { s.deaf = true })
			change()
			l.api.say(func(s *apiServer) { s.pods.refuse = 0 })
			l.await("an answer", func() bool { p := l.podPatches(); return p.missing+p.otherUID > 0 })
			l.await("no problem", func() bool { return l.trouble.mine()[networksUntold] == "" })
			if got := l.annotation("web"); got != "" {
				t.Errorf("the new pod has the status %s", got)
			}
			n := l.podPatches()
			l.api.say(func(s *apiServer) { s.deaf = false; s.change.Broadcast() })
			l.await("no pod with a problem", func() bool { return l.metric("patchbay_node_networks_problems") == 0 })
			if again := l.podPatches(); again.missing+again.otherUID != n.missing+n.otherUID || again.n > 0 {
				t.Errorf("asked again: %+v", again)
			}
		})
	}
}

// A status that the API server refuses is not repeated. An Event on the pod says so.
func TestStatusRefused(t *testing.T) {
	l := newNetworksLab(t)
	l.define("a", on(71))
	l.start()
	l.defined("a")
	l.api.say(func(s *apiServer) { s.pods.refuse = http.StatusUnprocessableEntity })
	l.pod("web", "u1", "a")
	l.started("c1", "web", "u1", "a")
	l.awaitEvent("web", "u1", "annotation k8s.v1.cni.cncf.io/network-status: the API server refuses it: Pod is invalid: Too long")
	l.pod("next", "u2", "a")
	l.api.say(func(s *apiServer) { s.pods.refuse = 0 })
	l.started("c2", "next", "u2", "a")
	l.awaitStatus("next", "pods eth0, shop/a net1")
	if got := l.podPatches(); got.n != 1 || got.refused != 1 {
		t.Errorf("requests %+v", got)
	}
}

// awaitEvent waits for an Event on a pod.
func (l *networksLab) awaitEvent(pod, uid, want string) {
	l.Helper()
	l.await("an Event: "+want, func() bool {
		l.api.mu.Lock()
		defer l.api.mu.Unlock()
		for _, e := range l.api.events {
			o := e.InvolvedObject
			if o.Kind == "Pod" && o.Namespace == "shop" && o.Name == pod && string(o.UID) == uid && e.Reason == string(networksUnattached) && strings.Contains(e.Message, want) {
				return true
			}
		}
		return false
	})
}

// A pod that names what cannot be gets an Event that says what to do, and none any more when that is there.
func TestPodNetworkEvents(t *testing.T) {
	l := newNetworksLab(t)
	l.start()
	l.pod("web", "u1", "later")
	l.pod("bad", "u2", "A")
	l.awaitEvent("web", "u1", "there is no NetworkAttachmentDefinition shop/later: create it")
	l.awaitEvent("bad", "u2", "annotation k8s.v1.cni.cncf.io/networks is not valid")
	l.define("later", on(71))
	l.await("one problem", func() bool { return l.metric("patchbay_node_networks_problems") == 1 })
}

// With a runtime that passes no annotations, ADDs find them in files.
func TestPodNetworksFromFiles(t *testing.T) {
	l := newNetworksLab(t)
	l.silent = true
	l.define("a", on(71))
	l.start(func(o *Options) { o.Networks.Annotations = true })
	l.pod("web", "u1", "a")
	l.pod("plain", "u2", "")
	l.started("c1", "web", "u1", "")
	s := l.started("c2", "plain", "u2", "")
	if nettest.HasLink(t, s.ns, "net1") {
		t.Error("a pod without the annotation has net1")
	}
	l.awaitStatus("web", "pods eth0, shop/a net1")
}

// An API server that has lost its objects does not empty the node's files.
func TestPodNetworksOfAnEmptyServer(t *testing.T) {
	l := newNetworksLab(t)
	l.define("a", on(71))
	l.start()
	l.defined("a")
	l.api.remove("n1", true)
	l.api.say(func(s *apiServer) { s.kinds.of(networks.Definitions).objects = map[string]string{} })
	l.api.cut(false)
	l.awaitProblem(networksUnfollowed)
	l.defined("a")
}

// A file that is damaged is written again.
func TestDamagedDefinition(t *testing.T) {
	l := newNetworksLab(t)
	l.define("a", on(71))
	l.start()
	l.defined("a")
	must(t, os.WriteFile(filepath.Join(l.dir, "node/networks/definitions/shop/a"), []byte("half"), 0o600))
	l.define("b", on(72))
	l.defined("b")
	l.defined("a")
}

// Without the option, the agent asks for nothing, the network is without the plugin, and files of an earlier run go. A pod of before is removed whole.
func TestPodNetworksOff(t *testing.T) {
	l := newNetworksLab(t)
	l.define("a", on(71))
	l.start()
	l.defined("a")
	before := leak.Must(t)
	s := l.sandbox("c1", "web", "u1", "a")
	must(t, s.add())
	l.stop()
	asked := l.kind(networks.Definitions).lists + l.kind(networks.Definitions).watches
	l.lab.start(func(o *Options) { o.NetworkPolicy.Off = true })
	l.await("the network without the plugin", func() bool { return l.conf() != "" && !strings.Contains(l.conf(), "networks") })
	l.await("no files", func() bool { return !netmirror.Written(l.opts.Paths) })
	must(t, s.del())
	leak.NoLeaks(t, before)
	if n := l.kind(networks.Definitions).lists + l.kind(networks.Definitions).watches; n != asked {
		t.Errorf("%d requests for definitions", n-asked)
	}
	if strings.Contains(httpRecorder(l.Handler(), "/metrics"), "patchbay_node_networks_definitions") {
		t.Error("metrics of what is off")
	}
}

// The status is there soon after the ADD, and the file of a definition soon after its creation: an ADD waits 5 s for it.
func TestPodNetworksSoon(t *testing.T) {
	l := newNetworksLab(t)
	l.start()
	l.pod("web", "u1", "a")
	done := make(chan error, 1)
	s := l.sandbox("c1", "web", "u1", "a")
	go func() { done <- s.add() }()
	l.define("a", on(71))
	must(t, <-done)
	defer s.del() //nolint:errcheck // the namespaces end
	began := time.Now()
	l.awaitStatus("web", "pods eth0, shop/a net1")
	t.Logf("status %v after the ADD", time.Since(began))
}
