// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package servicetest

import (
	"fmt"
	"strings"
	"time"
)

// ManyEndpoints returns how many endpoints one of many Services has: most have one, some few, one in a hundred has some 140.
func ManyEndpoints(i int) int {
	switch n := i % 100; {
	case n < 60:
		return 1
	case n < 80:
		return 2
	case n < 95:
		return 3 + n%8
	case n < 99:
		return 11 + i%90
	}
	return 100 + i%80
}

// ManyService returns the Service of a number below 65,536, as long as a real one, as the API serves it.
func ManyService(i int) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"team-%d","name":"app%d","uid":"0b9f3a52-7a0e-4d6c-9f56-%012d","creationTimestamp":"2026-11-23T08:00:00Z","labels":{"app.kubernetes.io/name":"app%d"},`+
		`"managedFields":[{"manager":"kubectl","operation":"Update","apiVersion":"v1","time":"2026-11-23T08:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:app.kubernetes.io/name":{}}},"f:spec":{"f:ports":{},"f:selector":{}}}}]},`+
		`"spec":{"type":"ClusterIP","clusterIP":"10.96.%d.%d","clusterIPs":["10.96.%d.%d"],"ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster","sessionAffinity":"None",`+
		`"selector":{"app.kubernetes.io/name":"app%d"},"ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":"http"}]},"status":{"loadBalancer":{}}}`,
		i%200, i, i, i, i>>8, i&255, i>>8, i&255, i)
}

// ManySlice returns the EndpointSlice of such a Service. at is when it was triggered, and first is the number of its first endpoint.
func ManySlice(i, first int, at time.Time) string {
	var list []string
	for n := first; n < first+ManyEndpoints(i); n++ {
		list = append(list, fmt.Sprintf(`{"addresses":["10.%d.%d.%d"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"n%d","zone":"z%d",`+
			`"targetRef":{"kind":"Pod","namespace":"team-%d","name":"app%d-5d4f8c7b9-%05d","uid":"0b9f3a52-7a0e-4d6c-9f56-%012d"}}`, 128+n>>16, n>>8&255, n&255, 1+n%200, n%3, i%200, i, n, n))
	}
	return fmt.Sprintf(`{"metadata":{"namespace":"team-%d","name":"app%d-abcde","uid":"1b9f3a52-7a0e-4d6c-9f56-%012d","generateName":"app%d-","labels":{"app.kubernetes.io/name":"app%d","endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io",`+
		`"kubernetes.io/service-name":"app%d"},"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":%q}},"addressType":"IPv4","ports":[{"name":"http","protocol":"TCP","port":8080}],"endpoints":[%s]}`,
		i%200, i, i, i, i, i, at.UTC().Format(time.RFC3339Nano), strings.Join(list, ","))
}
