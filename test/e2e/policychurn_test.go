// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/patchbay-net/patchbay/daemons/test/probe"
)

// TestPolicyChurn changes everything while pods connect to a server that a policy guards: labels of
// pods and of namespaces, pods of a node that has no kubelet, and real pods on nodes with 14
// addresses, so that each address soon belongs to a pod with another label. No connection of an
// allowed pod may be lost, and none of a denied one may be answered. The test runs only if
// PATCHBAY_KUBE_CHURN says for how long, as in `make nightly`.
func TestPolicyChurn(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("PATCHBAY_KUBE_CHURN"))
	if !ours() || err != nil {
		t.Log("runs in make nightly, with our build: PATCHBAY_KUBE_CHURN is no time")
		return
	}
	buildAgent(t)
	onNode(t, func(t *testing.T) {
		p := newPoliced(t, "small")
		defer p.saveLogs()
		c := &policyChurn{policed: p, api: p.client(), roles: map[string]string{}}
		c.prepare()
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		var work sync.WaitGroup
		work.Go(func() { c.fakePods(ctx) })
		work.Go(func() { c.namespaces(ctx) })
		for _, node := range p.nodes {
			work.Go(func() { c.realPods(ctx, node) })
		}
		work.Wait()
		seconds := length.Seconds()
		t.Logf("in %v: %d pods without a kubelet (%.0f a second), %d labels of pods (%.0f a second) and %d of namespaces changed; %d real pods, %d of them had an address of an earlier one with another label",
			length, c.fakes.Load(), float64(c.fakes.Load())/seconds, c.labels.Load(), float64(c.labels.Load())/seconds, c.spaces.Load(), c.real.Load(), c.reused.Load())
		for node, leaked := range c.leaked() {
			t.Logf("answers to %d strangers of %s: %d", c.strangers(node), node, leaked)
		}
		p.prove("while everything changed")
	})
}

// policyChurn is the state of TestPolicyChurn.
type policyChurn struct {
	*policed
	api *rest.RESTClient

	fakes, labels, spaces, real, reused atomic.Int64

	mu    sync.Mutex
	roles map[string]string // the last role of each address
	lives []churned
}

// churned is a real pod that has ended.
type churned struct {
	node, role string
	sent       int
	answers    int
}

// client returns a client of the API server's core group.
func (k *cluster) client() *rest.RESTClient {
	k.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", k.dir+"/cfg/admin.kubeconfig")
	if err != nil {
		k.Fatal(err)
	}
	c.Dial = func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		return conn, within("kl-cp", func() (err error) { conn, err = new(net.Dialer).DialContext(ctx, network, addr); return err })
	}
	c.GroupVersion, c.APIPath, c.QPS = &corev1.SchemeGroupVersion, "/api", -1
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	api, err := rest.RESTClientFor(c)
	if err != nil {
		k.Fatal(err)
	}
	return api
}

// These are the namespaces of pods without a kubelet, and of the real ones.
const (
	fakeSpaces = 5
	churnSpace = "churn"
	ghost      = "ghost" // their node
)

func (c *policyChurn) prepare() {
	c.Helper()
	c.apply(object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": ghost}, "spec": object{"taints": []object{{"key": "ghost", "effect": "NoSchedule"}}}})
	for i := range fakeSpaces {
		c.apply(object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": fmt.Sprint("fake", i), "labels": object{"trusted": "yes"}}})
	}
	c.apply(object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": churnSpace, "labels": object{"trusted": "yes"}}})
	if err := os.MkdirAll(filepath.Join(c.dir, "churn"), 0o700); err != nil {
		c.Fatal(err)
	}
	for i := range fakeSpaces {
		eventually(c, "the ServiceAccount of a namespace", func() error {
			return c.api.Get().Namespace(fmt.Sprint("fake", i)).Resource("serviceaccounts").Name("default").Do(c.Context()).Error()
		})
	}
}

// fail reports an error of a goroutine, unless it is due to the end.
func (c *policyChurn) fail(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		c.Error(err)
	}
}

func role(n int) string { return [...]string{"friend", "stranger"}[n%2] }

// fakePods keeps 60 pods on a node without a kubelet, replaces the oldest, and changes labels, as
// fast as the API server allows, but no more than 100 times a second. Their 40 addresses change
// their owners all the time.
func (c *policyChurn) fakePods(ctx context.Context) {
	const alive, addresses = 60, 40
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	no := false
	for n := 0; ctx.Err() == nil; n++ {
		<-tick.C
		namespace, name := fmt.Sprint("fake", n%fakeSpaces), fmt.Sprint("fake-", n)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"role": role(n / addresses)}}, Spec: corev1.PodSpec{
			NodeName: ghost, AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "c", Image: "c"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		}}
		c.fail(ctx, c.api.Post().Namespace(namespace).Resource("pods").Body(pod).Do(ctx).Error())
		status := fmt.Sprintf(`{"status": {"phase": "Running", "podIP": "10.244.99.%[1]d", "podIPs": [{"ip": "10.244.99.%[1]d"}]}}`, 1+n%addresses)
		c.fail(ctx, c.api.Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("pods").Name(name).SubResource("status").Body([]byte(status)).Do(ctx).Error())
		c.fakes.Add(1)
		if n < alive {
			continue
		}
		old := n - alive
		now := int64(0)
		c.fail(ctx, c.api.Delete().Namespace(fmt.Sprint("fake", old%fakeSpaces)).Resource("pods").Name(fmt.Sprint("fake-", old)).Body(&metav1.DeleteOptions{GracePeriodSeconds: &now}).Do(ctx).Error())
		other := old + 1 + rand.IntN(alive)
		label := fmt.Sprintf(`{"metadata": {"labels": {"role": %q}}}`, role(rand.IntN(2)))
		c.fail(ctx, c.api.Patch(types.StrategicMergePatchType).Namespace(fmt.Sprint("fake", other%fakeSpaces)).Resource("pods").Name(fmt.Sprint("fake-", other)).Body([]byte(label)).Do(ctx).Error())
		c.labels.Add(1)
	}
}

// namespaces changes the labels of the namespaces of these pods.
func (c *policyChurn) namespaces(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		label := fmt.Sprintf(`{"metadata": {"labels": {"trusted": %q}}}`, [...]string{"no", "yes"}[n/fakeSpaces%2])
		c.fail(ctx, c.api.Patch(types.StrategicMergePatchType).Resource("namespaces").Name(fmt.Sprint("fake", n%fakeSpaces)).Body([]byte(label)).Do(ctx).Error())
		c.spaces.Add(1)
		time.Sleep(100 * time.Millisecond)
	}
}

// realPods runs pods on a node, which fire at the server. Each has the other role than the one before.
func (c *policyChurn) realPods(ctx context.Context, node string) {
	for n := 0; ctx.Err() == nil; n += 3 {
		var names []string
		for i := range 3 {
			names = append(names, c.realPod(ctx, node, n+i))
		}
		for i, name := range names {
			c.await(ctx, node, role(n+i), name)
		}
	}
}

func (c *policyChurn) realPod(ctx context.Context, node string, n int) string {
	name := fmt.Sprintf("%s-%d", node, n)
	no, now := false, int64(0)
	kind := corev1.HostPathDirectory
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"role": role(n)}}, Spec: corev1.PodSpec{
		NodeName: node, AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &now, RestartPolicy: corev1.RestartPolicyNever,
		Volumes: []corev1.Volume{{Name: "out", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(c.dir, "churn"), Type: &kind}}}},
		Containers: []corev1.Container{{
			Name: "probe", Image: probeImage, ImagePullPolicy: corev1.PullNever,
			Command:      append([]string{"/probe", "first", "/out/" + name + ".json", "3s"}, c.targets...),
			VolumeMounts: []corev1.VolumeMount{{Name: "out", MountPath: "/out"}},
		}},
	}}
	c.fail(ctx, c.api.Post().Namespace(churnSpace).Resource("pods").Body(pod).Do(ctx).Error())
	return name
}

// await waits for the result of a pod, and deletes the pod.
func (c *policyChurn) await(ctx context.Context, node, role, name string) {
	file := filepath.Join(c.dir, "churn", name+".json")
	var text []byte
	for {
		var err error
		if text, err = os.ReadFile(file); err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	var life probe.Life
	if err := json.Unmarshal(text, &life); err != nil {
		c.Error(err)
	}
	c.real.Add(1)
	c.judge(node, role, name, life)
	c.fail(ctx, c.api.Delete().Namespace(churnSpace).Resource("pods").Name(name).Do(ctx).Error())
}

// judge checks what a pod was answered. On the server's node nothing may ever pass. Another node
// learns of a reused address only from the API server, which knows the pod after its start.
func (c *policyChurn) judge(node, role, name string, life probe.Life) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := churned{node: node, role: role}
	for _, r := range life.Fired {
		out.sent += r.Sent
		out.answers += r.Answers
	}
	reused := false
	for _, addr := range life.Addrs {
		if strings.Contains(addr, ".") {
			before, known := c.roles[addr]
			reused = known && before != role
			c.roles[addr] = role
		}
	}
	if reused {
		c.reused.Add(1)
	}
	c.lives = append(c.lives, out)
	switch {
	case role == "friend" && out.answers == 0:
		c.Errorf("%s, a friend on %s, got no answer to %d connections in three seconds: %+v", name, node, out.sent, life)
	case role == "stranger" && out.answers > 0 && node == "n1":
		c.Errorf("%s, a stranger on %s, got %d answers: %+v", name, node, out.answers, life)
	}
}

// leaked counts the answers to strangers, by node.
func (c *policyChurn) leaked() map[string]int {
	sum := map[string]int{}
	for _, l := range c.lives {
		if l.role == "stranger" {
			sum[l.node] += l.answers
		}
	}
	return sum
}

func (c *policyChurn) strangers(node string) (n int) {
	for _, l := range c.lives {
		if l.role == "stranger" && l.node == node {
			n++
		}
	}
	return n
}
