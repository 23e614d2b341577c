// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is the API server, as its administrator sees it.
type cluster struct {
	api        *rest.RESTClient // of the core group
	networking *rest.RESTClient
}

func newCluster(kubeconfig string) (*cluster, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	c.GroupVersion, c.APIPath = &corev1.SchemeGroupVersion, "/api"
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c.ContentType, c.QPS = runtime.ContentTypeProtobuf, -1
	api, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	c.GroupVersion, c.APIPath = &networkingv1.SchemeGroupVersion, "/apis"
	networking, err := rest.RESTClientFor(c)
	return &cluster{api, networking}, err
}

func (c *cluster) create(kind, namespace string, o runtime.Object) error {
	return c.api.Post().Resource(kind).NamespaceIfScoped(namespace, namespace != "").Body(o).Do(context.Background()).Error()
}

// node returns a Node as a kubelet registers it. With its 50 images it has some 10 kB.
func node(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: map[string]string{"kubernetes.io/hostname": name(i), "kubernetes.io/os": "linux"}}}
	n.Spec.PodCIDRs = []string{fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:244:0:%x::/64", i)}
	n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	for _, a := range []string{fmt.Sprintf("10.99.0.%d", 9+i), fmt.Sprintf("fd00:99::%x", 15+i)} { // the first is the lab's own
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	for image := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("registry.example.org/team/image-%d@sha256:%064d", image, image), fmt.Sprintf("registry.example.org/team/image-%d:v1.%d", image, image)},
			SizeBytes: 1 << 20,
		})
	}
	return n
}

func name(i int) string { return fmt.Sprint("n", i) }

// register makes the Nodes from..to.
func (c *cluster) register(from, to int) error {
	for i := from; i <= to; i++ {
		if err := c.create("nodes", "", node(i)); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) remove(node string) error {
	return c.api.Delete().Resource("nodes").Name(node).Do(context.Background()).Error()
}

// beat updates a Node's status, as its kubelet does at least every five minutes.
func (c *cluster) beat(node string) error {
	patch := fmt.Sprintf(`{"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": %q}]}}`, time.Now().UTC().Format(time.RFC3339))
	return c.api.Patch("application/strategic-merge-patch+json").Resource("nodes").Name(node).SubResource("status").Body([]byte(patch)).
		Do(context.Background()).Error()
}

// fill makes Pods on all Nodes.
func (c *cluster) fill(pods, nodes int) error {
	if err := c.create("serviceaccounts", "default", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}); err != nil {
		return err
	}
	return inParallel(pods, func(i int) error { return c.create("pods", "default", pod(i, nodes)) })
}

// inParallel calls f for 0..n-1, from several goroutines.
func inParallel(n int, f func(int) error) error {
	next, errs := make(chan int), make(chan error, n)
	var workers sync.WaitGroup
	for range 32 {
		workers.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					errs <- err
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
	close(errs)
	return <-errs
}

func pod(i, nodes int) *corev1.Pod {
	no := false
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", i), Labels: map[string]string{"app": fmt.Sprint("web-", i%100)}}}
	p.Spec = corev1.PodSpec{
		NodeName: name(1 + i%nodes), AutomountServiceAccountToken: &no,
		Containers: []corev1.Container{{Name: "web", Image: "registry.example.org/team/web:v1", Env: []corev1.EnvVar{{Name: "SHARD", Value: fmt.Sprint(i)}}}},
	}
	return p
}
