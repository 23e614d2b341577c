// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/patchbay-net/patchbay/internal/test/policytest"
	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// TestAPIIsUpstreams: the types of internal/test/policytest/api, from which the oracle and our engines get
// their clusters, have the same JSON as the API's own types. It compares each field, and random objects.
func TestAPIIsUpstreams(t *testing.T) {
	keeps[corev1.Namespace](t, filled[api.Namespace]())
	keeps[corev1.Node](t, filled[api.Node]())
	keeps[corev1.Pod](t, filled[api.Pod]())
	keeps[networkingv1.NetworkPolicy](t, filled[api.NetworkPolicy]())
	keeps[v1alpha2.ClusterNetworkPolicy](t, filled[api.ClusterNetworkPolicy]())
	for seed := range uint64(100) {
		g := policytest.NewGenerator(seed, policytest.Small)
		keeps[corev1.Namespace](t, g.Namespaces...)
		keeps[corev1.Node](t, g.Nodes...)
		keeps[corev1.Pod](t, g.Pods...)
		keeps[networkingv1.NetworkPolicy](t, g.Policies...)
		keeps[v1alpha2.ClusterNetworkPolicy](t, g.ClusterPolicies...)
	}
}

// keeps checks that upstream's type writes all that it reads of our objects. What it writes besides is empty.
func keeps[T, O any](t *testing.T, objects ...O) {
	t.Helper()
	for _, o := range objects {
		ours := treeOf(t, o)
		if theirs := treeOf(t, through[T](t, o)); !within(ours, theirs) {
			t.Errorf("%T is\n%v\nand %T of it\n%v", o, ours, *new(T), theirs)
		}
	}
}

// through converts an object to another type, by its JSON.
func through[T any](t *testing.T, object any) *T {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	into := new(T)
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("read a %T from %s: %v", *into, text, err)
	}
	return into
}

func treeOf(t *testing.T, object any) any {
	t.Helper()
	return *through[any](t, object)
}

// within reports whether a JSON value has all that a part of it has.
func within(part, whole any) bool {
	switch part := part.(type) {
	case map[string]any:
		object, ok := whole.(map[string]any)
		for key, value := range part {
			ok = ok && within(value, object[key])
		}
		return ok
	case []any:
		list, ok := whole.([]any)
		ok = ok && len(list) == len(part)
		for i := range part {
			ok = ok && within(part[i], list[i])
		}
		return ok
	}
	return part == whole
}

// filled returns an object with a value of its own in each field.
func filled[O any]() O {
	var o O
	n := 0
	fill(reflect.ValueOf(&o).Elem(), &n)
	return o
}

func fill(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(int64(*n), 0).UTC()))
		return
	case api.IntOrString:
		v.Set(reflect.ValueOf(api.IntOrString{StrVal: fmt.Sprint("name", *n)})) // the generator draws numbers too
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{fmt.Sprint("key", *n): fmt.Sprint("value", *n)}))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.String:
		v.SetString(fmt.Sprint("text", *n))
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.SetInt(int64(*n))
	}
}

// TestValuesAreUpstreams: a value that the oracle compares with is the API's.
func TestValuesAreUpstreams(t *testing.T) {
	for ours, theirs := range map[any]any{
		api.LabelMetadataName: corev1.LabelMetadataName,
		api.NodeHostName:      corev1.NodeHostName, api.NodeInternalIP: corev1.NodeInternalIP,
		api.PodPending: corev1.PodPending, api.PodRunning: corev1.PodRunning, api.PodSucceeded: corev1.PodSucceeded,
		api.PodFailed: corev1.PodFailed, api.PodUnknown: corev1.PodUnknown,
		api.ContainerRestartPolicyAlways: corev1.ContainerRestartPolicyAlways,
		api.ProtocolTCP:                  corev1.ProtocolTCP, api.ProtocolUDP: corev1.ProtocolUDP, api.ProtocolSCTP: corev1.ProtocolSCTP,
		api.PolicyTypeIngress: networkingv1.PolicyTypeIngress, api.PolicyTypeEgress: networkingv1.PolicyTypeEgress,
		api.LabelSelectorOpIn: metav1.LabelSelectorOpIn, api.LabelSelectorOpNotIn: metav1.LabelSelectorOpNotIn,
		api.LabelSelectorOpExists: metav1.LabelSelectorOpExists, api.LabelSelectorOpDoesNotExist: metav1.LabelSelectorOpDoesNotExist,
		api.AdminTier: v1alpha2.AdminTier, api.BaselineTier: v1alpha2.BaselineTier,
		api.ClusterNetworkPolicyRuleActionAccept: v1alpha2.ClusterNetworkPolicyRuleActionAccept,
		api.ClusterNetworkPolicyRuleActionDeny:   v1alpha2.ClusterNetworkPolicyRuleActionDeny,
		api.ClusterNetworkPolicyRuleActionPass:   v1alpha2.ClusterNetworkPolicyRuleActionPass,
	} {
		if fmt.Sprint(ours) != fmt.Sprint(theirs) {
			t.Errorf("%T is %q, the API's %q", ours, ours, theirs)
		}
	}
}

// TestSelectors: the oracle reads a selector as the API's own package does.
func TestSelectors(t *testing.T) {
	asked, hits := 0, 0
	for seed := range uint64(300) {
		g := policytest.NewGenerator(seed, policytest.Small)
		for _, np := range g.Policies {
			ours := &np.Spec.PodSelector
			theirs, err := metav1.LabelSelectorAsSelector(through[metav1.LabelSelector](t, ours))
			if err != nil {
				t.Fatal(err)
			}
			for _, pod := range g.Pods {
				asked++
				if got := policytest.Matches(ours, pod.Labels); got != theirs.Matches(labels.Set(pod.Labels)) {
					t.Errorf("%v selects %v: %v", ours, pod.Labels, got)
				} else if got {
					hits++
				}
			}
		}
	}
	if asked < 3000 || hits < asked/5 || hits > asked*4/5 {
		t.Errorf("%d of %d selectors match: too few or too many to tell", hits, asked)
	}
}
