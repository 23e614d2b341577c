// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package v20170312 replaces the library of a cloud, which the module proxy does not have.
// Flannel's backend for that cloud needs it to compile; no test uses that backend.
package v20170312

import "errors"

// The types have only the fields that the backend uses.
type (
	// Client refuses every request.
	Client struct{}
	// Filter is a condition.
	Filter struct {
		Name   *string
		Values []*string
	}
	// Route is one route.
	Route struct {
		RouteId                                                 *uint64
		DestinationCidrBlock, GatewayId, GatewayType, RouteType *string
		Enabled                                                 *bool
	}
	// RouteTable is a table of routes.
	RouteTable struct {
		RouteTableId *string
		RouteSet     []*Route
	}
	// Request is any request.
	Request struct {
		Filters      []*Filter
		RouteTableId *string
		Routes       []*Route
	}
	// Response is any answer.
	Response struct {
		Response struct{ RouteTableSet []*RouteTable }
	}
)

var errNoCloud = errors.New("this build has no cloud")

// NewClientWithSecretId makes a client.
func NewClientWithSecretId(string, string, string) (*Client, error) { return nil, errNoCloud }

// NewDescribeRouteTablesRequest makes a request.
func NewDescribeRouteTablesRequest() *Request { return &Request{} }

// NewDeleteRoutesRequest makes a request.
func NewDeleteRoutesRequest() *Request { return &Request{} }

// NewCreateRoutesRequest makes a request.
func NewCreateRoutesRequest() *Request { return &Request{} }

// DescribeRouteTables fails.
func (*Client) DescribeRouteTables(*Request) (*Response, error) { return nil, errNoCloud }

// DeleteRoutes fails.
func (*Client) DeleteRoutes(*Request) (*Response, error) { return nil, errNoCloud }

// CreateRoutes fails.
func (*Client) CreateRoutes(*Request) (*Response, error) { return nil, errNoCloud }
