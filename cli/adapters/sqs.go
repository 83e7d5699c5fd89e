package adapters

import (
	"context"
	"net/http"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	awssns "github.com/aws/aws-sdk-go-v2/service/sns"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/waybill-go/waybill/cli"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
	"github.com/waybill-go/waybill/transport/sqs/snsclient"
)

// SQS are the settings of the kind sqs, beside sqs.Options. Credentials come from where the AWS SDK looks for them:
// variables, its files, the machine's role.
type SQS struct {
	// Region is the AWS region; empty means that of the SDK. Endpoint is the URL of another service, for
	// SNS, too; empty means AWS.
	Region, Endpoint string
	sqstransport.Options
}

func openSQS(ctx context.Context, s *SQS, env cli.Env) (*cli.Transport, error) {
	pool := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.MaxIdleConnsPerHost = t.MaxIdleConns })
	cfg, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(s.Region), awsconfig.WithHTTPClient(pool))
	if err != nil {
		return nil, err
	}
	client := awssqs.NewFromConfig(cfg, func(o *awssqs.Options) {
		if s.Endpoint != "" {
			o.BaseEndpoint = &s.Endpoint
		}
	})
	opts := s.Options
	opts.Logger, opts.Passive = env.Logger, opts.Passive || env.Passive
	if opts.TopicARN != "" {
		opts.SNS = snsclient.New(awssns.NewFromConfig(cfg, func(o *awssns.Options) {
			if s.Endpoint != "" {
				o.BaseEndpoint = &s.Endpoint
			}
		}))
	}
	bus, err := sqstransport.New(client, opts)
	if err != nil {
		return nil, err
	}
	return &cli.Transport{Publisher: bus, Close: bus.Close}, nil
}
